"""Jobs whose hosts Slurm allocates."""
