"""From many runs to one: laws of the loss, their fits with intervals, the best size and tokens for a budget."""
