"""What forks of the zygote will write to, close together in memory.

A fork copies each page of 4 KiB that it is the first to write to, and Python writes to whatever it
looks at, since it counts references in the object itself. On its way to a first answer a proc
touches 1,600 objects of 0.4 MB, which would fill 100 pages. Where imports leave them, among what
nobody needs, they lie on 770, and to copy those is most of what a proc takes (docs/performance.md).
Linkers are given an order file against the same: what a program runs as it begins, to be laid side
by side. `order` is ours.

Three things are done, none of which changes what a program sees:

- names are interned before anything is imported (`intern_names`), and so lie together;
- the code of what procs run is made once more, in one go;
- gaps in what Python's allocator has begun are filled, so that this, and what a fork allocates,
  lies by itself; and the cache of attribute lookups is emptied, since each entry that a fork puts
  in place of another writes to the name of that one (`settle`).

Where the allocator is another one, or `order` names what is there no more, less is gained.

Runs in: the agent before it imports, then the zygote.
Owns: what fills the gaps, and the code that was copied: freed, it would be gaps again.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, Final, cast

from monarch._src.proc.order import NAMES

# Names that are interned count no references from this version on.
COUNTS_NAMES: Final = sys.version_info < (3, 12)
# Of the allocator for objects of up to 512 bytes, from Python 3.10 on.
POOL = 16 << 10
POOL_HEAD = 48
STEP, SMALLEST, LARGEST = 16, 48, 512  # but for two sizes that numbers have to themselves
AS_NEW = 8  # this many in a row from the first place on: a pool that was empty
MOST_FILLED = 1 << 20  # bytes, of a size
BYTES_HEAD = sys.getsizeof(b"")

_kept: list[Any] = []


def intern_names() -> None:
    """Intern the names of what procs run. To be called before that is imported."""
    if COUNTS_NAMES:
        _kept.append(list(map(sys.intern, NAMES.split())))


def settle(functions: str = "") -> None:
    """Nothing more is imported for now, and forks may follow.

    `functions`: whose code is to lie side by side, as far as it is loaded; as in `order`.
    """
    _fill_gaps()
    _gather(functions)
    if COUNTS_NAMES:
        sys._clear_type_cache()  # pyright: ignore[reportPrivateUsage]


def function_in(names: Mapping[str, Any], qualname: str) -> FunctionType | None:
    """The function of that qualified name, also behind a decorator; None if there is none.

    `names`: those of its module.
    """
    found: Any = None
    for part in qualname.split("."):
        found = names.get(part)
        names = getattr(found, "__dict__", {})
    for behind in ("fget", "__func__", "__wrapped__"):
        found = getattr(found, behind, found)
    return found if isinstance(found, FunctionType) else None


def _gather(functions: str) -> None:
    found = list(dict.fromkeys(_loaded(functions)))
    codes = [function.__code__ for function in found]
    _kept.append(codes)
    copies = cast("list[CodeType]", marshal.loads(marshal.dumps(codes)))
    for function, code in zip(found, copies, strict=True):
        function.__code__ = code


def _loaded(functions: str) -> Iterator[FunctionType]:
    for line in functions.splitlines():
        module, *qualnames = line.split()
        names = getattr(sys.modules.get(module), "__dict__", {})
        for qualname in qualnames:
            function = function_in(names, qualname)
            if function is not None:
                yield function


def _fill_gaps() -> None:
    for size in range(LARGEST, SMALLEST - STEP, -STEP):
        if not _filled(size):
            return  # another allocator


def _filled(size: int) -> bool:
    """Whether all gaps for objects of that size are filled."""
    at, in_row = 0, 0
    for _ in range(MOST_FILLED // size):
        one: Any = bytes(size - BYTES_HEAD)
        _kept.append(one)
        before, at = at, id(one)
        if at % POOL == POOL_HEAD:
            in_row = 1
        elif in_row:
            in_row = in_row + 1 if at == before + size else 0
        if in_row == AS_NEW:
            del one  # a pool was begun, since there are no gaps left: give it back
            for _ in range(AS_NEW):
                _kept.pop()
            return True
    return False
