"""Versions of model weights, published and pulled."""
