"""Training: LightningModules, metrics, schedules and callbacks."""

import subquad.torchvision_shim  # noqa: F401  pytorch_lightning imports torchvision
