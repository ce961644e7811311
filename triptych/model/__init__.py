"""The network: a bidirectional transformer, its loss head, and what both cost."""
