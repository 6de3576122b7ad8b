"""What trained or untrained models do: attention matrices, spectra, theorems, a hardware model."""
