"""Studies: many small runs, kept as records, and the figures that are drawn from the records alone."""
