"""ListOps data: files, parsing and splits."""
