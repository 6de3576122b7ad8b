"""Figures of the papers, from runs and measurements."""
