"""Which modules belong to the user's program, by their files. No I/O.

No path is resolved, and `sysconfig`, which takes milliseconds, is not asked: a proc looks at some
hundred modules at its end. So the standard library and this package are known by their place, and
installed packages by the name of their folder.
"""

from __future__ import annotations

import os
import re

_LIBRARIES = (
    os.path.join(os.path.dirname(os.__file__), ""),
    os.path.abspath(f"{os.path.dirname(__file__)}/../..") + os.sep,  # runtime/monarch
)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")


def is_of_the_program(path: object) -> bool:
    """Whether a module with that `__file__` is neither of a library nor of an installed package."""
    if not isinstance(path, str) or not os.path.isabs(path):  # `torch.ops` has a file name only
        return False
    return not path.startswith(_LIBRARIES) and not _INSTALLED.search(path)
