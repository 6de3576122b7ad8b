"""Mechanisms: one file for each paper, and in `base.py` the contract that all of them keep."""
