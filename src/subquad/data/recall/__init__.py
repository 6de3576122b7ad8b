"""Multi-query associative recall, generated."""
