"""Studies: many small runs kept as records, with figures and findings made from the records alone."""
