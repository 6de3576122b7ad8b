"""Pathfinder data: files, parsing and splits."""
