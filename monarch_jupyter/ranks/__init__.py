"""The part of the notebook that runs on ranks."""
