"""Training: LightningModules, metrics, schedules and callbacks."""
