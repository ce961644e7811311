"""Scaling laws: isoFLOP grids, fits with confidence intervals, and the compute-optimal model for a budget."""
