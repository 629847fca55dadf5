"""Functions and arguments of the program as bytes within a batch.

The client pickles them when an operation is issued: the program may change them before the send.
"""

from __future__ import annotations

import pickle
from typing import Any

from monarch._src.actor.serialize import pack_value, unpack_value
from monarch._src.wire.frames import Payload


def packed(value: object) -> bytes:
    """A value, pickled with the code of functions that the ranks cannot import.

    Raises the errors of pickle.
    """
    payload = pack_value(value, loose=True)
    apart: Any = payload.buffers
    buffers = [bytes(one) for one in apart]
    return pickle.dumps((bytes(payload.body), buffers), pickle.HIGHEST_PROTOCOL)


def unpacked(data: bytes) -> Any:
    """The value that `packed` has pickled."""
    body, buffers = pickle.loads(data)
    return unpack_value(Payload(body, buffers))
