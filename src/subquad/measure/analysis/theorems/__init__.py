"""Numerical checks of theorems and identities of the papers: one file for each topic, with a function `check`."""
