"""Training runs as Slurm jobs."""
