"""Estimates made before a run starts: tokens, FLOPs, memory, hours."""
