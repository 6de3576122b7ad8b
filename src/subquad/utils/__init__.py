"""Helpers that are independent of models and runs: errors, atomic files, cores, memory allocation, saved figures."""
