"""The pure part of the Slurm launcher: requests, queue entries, reports of workers."""
