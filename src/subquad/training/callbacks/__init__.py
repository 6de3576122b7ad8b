"""Callbacks for Lightning's trainer."""
