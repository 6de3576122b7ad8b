"""LightningModules with their losses and metrics."""
