"""Estimates the cost of tables before they are run: steps, time, disk space and downloads."""
