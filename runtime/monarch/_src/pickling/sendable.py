"""Whether a value can be sent to another process.

Runs in: any process, any thread.
"""

from __future__ import annotations

from monarch._src.pickling.pickler import dumps


def why_not_sent(value: object) -> str | None:
    """Why a call could not carry this value, on one line; None if it could.

    The value is pickled as an answer is, by the runtime's own pickler; large buffers in it are not
    copied.
    """
    try:
        dumps(value, loose=True)
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None
