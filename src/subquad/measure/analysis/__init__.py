"""Analyses of models: attention matrices, spectra, theorems and a hardware model."""
