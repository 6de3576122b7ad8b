"""Images data: files, parsing and splits."""
