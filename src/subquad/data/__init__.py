"""Datasets: one family a file, each a LightningDataModule with a DataSpec."""

import subquad.torchvision_shim  # noqa: F401  pytorch_lightning imports torchvision
