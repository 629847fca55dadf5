"""Messages between the kernel and its pages."""
