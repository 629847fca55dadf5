"""Curves for TensorBoard, written by one rank. It imports torch."""

from monarch._src.tensor.remote.tensorboard import Tensorboard
from monarch.actor import context as _context  # registers this process as a client

del _context

__all__ = ["Tensorboard"]
