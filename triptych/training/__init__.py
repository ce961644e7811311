"""Training: configuration, one step, the loop around it, what it writes."""
