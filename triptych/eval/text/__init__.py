"""Text: log-likelihoods of answers, completions, and the tasks of lm-evaluation-harness."""
