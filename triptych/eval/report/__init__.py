"""One HTML page of the results of a model."""
