"""Data sets. Each family of data is a subclass of SplitData."""
