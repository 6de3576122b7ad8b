"""Sweeps over many runs, on this machine or on a cluster: starting them and showing their progress."""
