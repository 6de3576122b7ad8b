"""Text data: files, parsing and splits."""
