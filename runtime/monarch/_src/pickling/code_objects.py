"""Reduce code objects for pickle, with the names of their files. No I/O.

pickle has no reduction of code, and that of cloudpickle depends on its release: 3.1.3 replaces the
file name by `<dynamic-code>`, so that tracebacks, pdb, warnings and `inspect.getsource` find no
text. The reduction here lists every argument of the constructor. Both sides run the same minor
version of Python (the handshake of a link checks it), so the byte code itself can be sent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

Reduced = tuple[Callable[..., CodeType], tuple[Any, ...]]

# In the order of the constructor's arguments, which are positional only.
_COMMON = (
    "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize",
    "co_flags", "co_code", "co_consts", "co_names", "co_varnames", "co_filename", "co_name",
)  # fmt: skip
_FIELDS = (
    (*_COMMON, "co_qualname", "co_firstlineno", "co_linetable", "co_exceptiontable",
     "co_freevars", "co_cellvars")
    if sys.version_info >= (3, 11)
    else (*_COMMON, "co_firstlineno", "co_linetable", "co_freevars", "co_cellvars")
)  # fmt: skip


def make_code(*fields: Any) -> CodeType:
    """The code object that `reduce_code` was given."""
    return CodeType(*fields)


def reduce_code(code: CodeType) -> Reduced:
    """The reduction of a code object: the function that makes it, and its fields.

    Nested functions are among the constants, and reduced by the same pickler in turn.
    """
    return make_code, tuple(getattr(code, name) for name in _FIELDS)
