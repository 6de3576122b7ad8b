"""Helpers without knowledge of models or runs: errors, atomic files, cores, memory allocation, plots on disk."""
