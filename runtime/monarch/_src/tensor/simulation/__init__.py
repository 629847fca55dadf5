"""Programs of tensors on a mesh without processes: their shapes, time and memory, and no values."""
