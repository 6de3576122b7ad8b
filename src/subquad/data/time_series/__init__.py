"""Time series data: files, parsing and splits."""
