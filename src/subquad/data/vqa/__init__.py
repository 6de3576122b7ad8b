"""Visual question answering data: files, parsing and splits."""
