"""Datasets: one family a file, each a LightningDataModule with a DataSpec."""
