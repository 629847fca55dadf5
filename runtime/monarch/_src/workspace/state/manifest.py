"""The contents of a workspace, and the changes that make a copy on a host equal to it.

A manifest names all files, links and directories of a workspace by their paths below its root, and
files by a digest of their contents. A host compares it with what it has placed before, and asks for
the contents that it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

Stamp: TypeAlias = tuple[int, int]
"""A version of a file on a disk: time of its last change in ns, and its size in bytes."""


class File(msgspec.Struct, frozen=True, tag="file", array_like=True):
    """A file. `stamp`: its version where it was scanned, whose time the copy gets."""

    digest: str
    mode: int  # permissions, as 0o755
    stamp: Stamp


class Link(msgspec.Struct, frozen=True, tag="link", array_like=True):
    """A symbolic link, which is copied as it is."""

    target: str


class Folder(msgspec.Struct, frozen=True, tag="folder", array_like=True):
    """A directory."""


Entry: TypeAlias = File | Link | Folder
Manifest: TypeAlias = dict[str, Entry]


class Changes(msgspec.Struct, frozen=True):
    """Work on a copy, in this order. Paths are below the root of the copy."""

    remove: list[str]  # a directory comes after its contents
    make: list[str]  # directories and links; a directory comes before its contents
    write: list[str]  # files

    @property
    def total(self) -> int:
        """How many entries change."""
        return len(self.remove) + len(self.make) + len(self.write)


def changes(wanted: Manifest, placed: Manifest, intact: Iterable[str]) -> Changes:
    """The changes that make a copy equal to `wanted`.

    Args:
        placed: the manifest that the copy was made equal to last.
        intact: the paths of `placed` that are still as they were placed. Others have been changed
            or removed on the host, and are placed again.

    What a program has written beside the placed files stays.
    """
    same = {path for path in intact if _is_same(placed.get(path), wanted.get(path))}
    remove = [
        path for path, entry in placed.items()
        if path not in wanted or type(wanted[path]) is not type(entry)
    ]  # fmt: skip
    new = [path for path in wanted if path not in same]
    return Changes(
        sorted(remove, reverse=True),
        sorted(path for path in new if not isinstance(wanted[path], File)),
        sorted(path for path in new if isinstance(wanted[path], File)),
    )


def _is_same(placed: Entry | None, wanted: Entry | None) -> bool:
    if isinstance(placed, File) and isinstance(wanted, File):
        return (placed.digest, placed.mode) == (wanted.digest, wanted.mode)
    return placed == wanted


def lacking(wanted: Manifest, write: Iterable[str]) -> list[str]:
    """The digests of the contents that a host needs to write these files, each once."""
    return list(dict.fromkeys(digest_of(wanted, path) for path in write))


def digest_of(manifest: Manifest, path: str) -> str:
    """The digest of the file at that path of a manifest."""
    entry = manifest[path]
    assert isinstance(entry, File)
    return entry.digest


def largest(sizes: Mapping[str, int], count: int) -> Sequence[tuple[str, int]]:
    """The files and directories near the top of a workspace that are largest, and their sizes.

    `sizes` are those of all files, in bytes.
    """
    parts: dict[str, int] = {}
    for path, size in sizes.items():
        top = "/".join(path.split("/")[:2])
        parts[top] = parts.get(top, 0) + size
    return sorted(parts.items(), key=lambda one: -one[1])[:count]
