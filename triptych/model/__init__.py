"""The model: a bidirectional transformer, its loss head, and counts of its parameters, FLOPs and memory."""
