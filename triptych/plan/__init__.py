"""What a run needs before it is started: tokens, FLOPs, memory, hours."""
