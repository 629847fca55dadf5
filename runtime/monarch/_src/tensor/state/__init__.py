"""The pure parts of distributed tensors: instructions, numbers and batches. No torch."""
