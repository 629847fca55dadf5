"""Reads the directories of a workspace into a manifest, and the contents of its files.

Runs in: the client.
Owns: the digests of files that this process has read, by path. A file whose version has not changed
is not read again.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from monarch._src.mesh.workspaces import Workspace, size_text
from monarch._src.workspace.state.manifest import (
    Entry,
    File,
    Folder,
    Link,
    Manifest,
    Stamp,
    largest,
)

PIECE = 1 << 20
BATCH = 8 << 20
DIGEST_BYTES = 20
SETTLED_NS = 2_000_000_000
"""A file that was changed so shortly before it was read may change again within the same tick of
its file system's clock, which leaves its version as it was. It is read again the next time."""

_digests: dict[tuple[str, int, Stamp], str] = {}


def scan(workspace: Workspace) -> tuple[Manifest, dict[str, Path]]:
    """The manifest of a workspace, and the local file of each of its files.

    Raises:
        FileNotFoundError, NotADirectoryError: one of its directories is not there, or is none.
        ValueError: two of its directories have a file at one path; or it is larger than
            `max_bytes`.
        OSError: a file cannot be read.
    """
    statuses: dict[str, tuple[Path, os.stat_result]] = {}
    for directory, name in workspace.dirs.items():
        if not directory.is_dir():
            missing = NotADirectoryError if directory.exists() else FileNotFoundError
            raise missing(f"{directory} is no directory; a workspace is made of directories")
        for path, status in _walk(workspace, directory):
            placed = os.path.normpath(os.path.join(name, path)) if path else name
            if not placed:
                continue  # the root itself
            local = directory / path
            before = statuses.get(placed)
            if before is not None and not (_is_folder(before[1]) and _is_folder(status)):
                raise ValueError(
                    f"{before[0]} and {local} would both be {placed!r} on hosts; give their "
                    "directories other names, or exclude one of them"
                )
            statuses[placed] = (local, status)
    _check_size(workspace, {path: status for path, (_, status) in statuses.items()})
    found = {path: _entry(local, status) for path, (local, status) in statuses.items()}
    for placed in list(found):  # directories above a name such as deps/library
        for parent in Path(placed).parents[:-1]:
            found.setdefault(str(parent), Folder())
    return found, {path: local for path, (local, _) in statuses.items()}


def _is_folder(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode)


def _check_size(workspace: Workspace, statuses: Mapping[str, os.stat_result]) -> None:
    """Refuse a workspace that is too large, before anything of it is read."""
    sizes = {path: one.st_size for path, one in statuses.items() if stat.S_ISREG(one.st_mode)}
    total = sum(sizes.values())
    if total > workspace.max_bytes:
        parts = ", ".join(f"{path} ({size_text(size)})" for path, size in largest(sizes, 3))
        raise ValueError(
            f"the workspace has {size_text(total)}, and max_bytes is "
            f"{size_text(workspace.max_bytes)}; its largest parts are {parts}. Leave out what "
            'ranks do not need, by exclude=["data"], or raise max_bytes of Workspace'
        )


def _walk(workspace: Workspace, top: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below a directory that is copied: its path below that, and its status."""
    yield "", os.stat(top)
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(top / folder) as entries:
            children = sorted(entries, key=lambda entry: entry.name)
        for entry in children:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if workspace.leaves_out(path):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed since
            if stat.S_ISDIR(status.st_mode):
                if os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):
                    continue  # a virtual environment
                pending.append(path)
            elif not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                continue  # a socket, a pipe or a device
            yield path, status


def _entry(path: Path, status: os.stat_result) -> Entry:
    if stat.S_ISDIR(status.st_mode):
        return Folder()
    if stat.S_ISLNK(status.st_mode):
        return Link(os.readlink(path))
    digest, stamp = _digest(path, status)
    return File(digest, stat.S_IMODE(status.st_mode) & 0o777, stamp)


def _digest(path: Path, status: os.stat_result) -> tuple[str, Stamp]:
    stamp = (status.st_mtime_ns, status.st_size)
    key = (str(path), status.st_ino, stamp)
    known = _digests.get(key)
    if known is not None:
        return known, stamp
    began = time.time_ns()
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for piece in pieces(path):
        hashed.update(piece)
    digest = hashed.hexdigest()
    if began - status.st_mtime_ns > SETTLED_NS:
        _digests[key] = digest
    return digest, stamp


def pieces(path: Path) -> Iterator[bytes]:
    """The contents of a file."""
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            yield piece


class FileChangedError(Exception):
    """A file is no longer as it was scanned; the text is its path."""


def batches(
    digests: Iterable[str], source: Mapping[str, Path], size: int = BATCH
) -> Iterator[list[tuple[str, bytes]]]:
    """The contents of these digests in pieces, in messages of about `size` bytes.

    Raises:
        FileChangedError: a file has other contents now, or is gone.
        OSError: a file cannot be read.
    """
    batch: list[tuple[str, bytes]] = []
    held = 0
    for digest in digests:
        hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
        try:
            for piece in pieces(source[digest]):
                hashed.update(piece)
                batch.append((digest, piece))
                held += len(piece)
                if held >= size:
                    yield batch
                    batch, held = [], 0
        except FileNotFoundError:
            raise FileChangedError(str(source[digest])) from None
        if hashed.hexdigest() != digest:
            raise FileChangedError(str(source[digest]))
    if batch:
        yield batch


def import_directories(workspace: Workspace, manifest: Manifest) -> list[str]:
    """Where ranks import from below the root, beside the import path of this process.

    These are the workspace's directories, and those from which this process has imported modules
    without having them on its path, as an editable install does.
    """
    found = list(workspace.dirs.values())
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or not isinstance(file, str) or name == "__main__":
            continue
        folder = Path(file).parent
        above = folder.parent if Path(file).name == "__init__.py" else folder
        placed = placed_at(workspace, above)
        if placed in manifest:  # not so a virtual environment
            found.append(placed)
    return list(dict.fromkeys(found))


def placed_at(workspace: Workspace, path: Path) -> str | None:
    """The path below the root of a local path; None if it is in no directory of the workspace."""
    for directory, name in workspace.dirs.items():
        if path.is_relative_to(directory):
            below = path.relative_to(directory)
            return os.path.normpath(os.path.join(name, below)) if below.parts else name
    return None


def directories(workspace: Workspace) -> Sequence[tuple[str, str]]:
    """The directories of a workspace as text, the innermost first, and their names on hosts."""
    found = {(str(path), name): None for path, name in workspace.dirs.items()}
    # Python resolves the directory of a script, and that of the process.
    found.update({(os.path.realpath(path), name): None for path, name in workspace.dirs.items()})
    return sorted(found, key=lambda one: -one[0].count(os.sep))
