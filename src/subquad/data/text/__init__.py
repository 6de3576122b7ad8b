"""Text data: files, parsing, tokenisation and splits."""
