"""Callbacks of Lightning's trainer."""
