"""The Debug Adapter Protocol: one editor session over many ranks."""
