"""torch's profiler on every rank of the active mesh. It imports torch.

`monarch.observe.profile(torch=True)` shows the operations of torch beside calls and spans, for
processes without tensors of a mesh too.
"""

from monarch._src.tensor.remote.torch_profiles import Schedule, profile, record_function
from monarch.actor import context as _context  # registers this process as a client

del _context

__all__ = ["Schedule", "profile", "record_function"]
