"""One run: training, resuming, evaluation and its summary."""
