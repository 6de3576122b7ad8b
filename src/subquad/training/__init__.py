"""One run: training, resuming, evaluating, and what is shown at its end."""
