"""The forward process and the objective: how tokens are masked, and what predicting them is worth."""
