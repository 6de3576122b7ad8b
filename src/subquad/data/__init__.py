"""Datasets: one family a file, each a SplitData with a DataSpec."""
