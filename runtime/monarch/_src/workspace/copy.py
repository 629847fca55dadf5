"""The copy of a workspace on one host: compares it with a manifest, and makes it equal to that.

Runs in: a proc of that host.
Owns: the files that it has placed, which it records in the session directory of the host.
Invariants: contents arrive beside the copy, so an interrupted transfer changes nothing. Each file
is replaced as a whole. What a program has written beside the placed files stays.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from monarch._src.host.workspace_paths import WorkspacePaths, root_for, set_in_force
from monarch._src.workspace.state.manifest import (
    Changes,
    Entry,
    File,
    Link,
    Manifest,
    Stamp,
    changes,
    digest_of,
    lacking,
)

RECORD = "workspace_files.json"


class _Placed(msgspec.Struct):
    """An entry of the copy. `stamp`: the version of the file on this disk."""

    entry: Entry
    stamp: Stamp | None = None


class WorkspaceCopy:
    """The copy of one session."""

    def __init__(self, directory: Path) -> None:
        """Take the copy of the session of that directory; make an empty one if there is none.

        Raises:
            OSError: there is no place for it.
        """
        self._directory = directory
        self.root = root_for(directory)
        self._incoming = self.root / ".monarch" / f"incoming-{directory.name}"
        self._wanted: Manifest = {}
        self._changes = Changes([], [], [])

    def compare(self, wanted: Manifest) -> list[str]:
        """Begin to make the copy equal to a manifest; returns the digests of missing contents."""
        shutil.rmtree(self._incoming, ignore_errors=True)
        placed = self._record()
        intact = [path for path, one in placed.items() if self._is_intact(path, one)]
        self._wanted = wanted
        self._changes = changes(wanted, {path: one.entry for path, one in placed.items()}, intact)
        return lacking(wanted, self._changes.write)

    def receive(self, pieces: Iterable[tuple[str, bytes]]) -> None:
        """Add pieces of contents, in order, each with the digest of the whole."""
        self._incoming.mkdir(parents=True, exist_ok=True)
        for digest, piece in pieces:
            with open(self._incoming / digest, "ab") as file:
                file.write(piece)

    def commit(self, directories: Sequence[tuple[str, str]], imports: Sequence[str]) -> Changes:
        """Make the copy equal to the manifest, and have procs that start from now on use it.

        Raises:
            OSError: a file cannot be placed. What the copy had stays recorded.
        """
        made, record = self._changes, self._record()
        self._incoming.mkdir(parents=True, exist_ok=True)
        last_of = {digest_of(self._wanted, path): path for path in made.write}
        for path in (*made.make, *made.write):
            record.pop(path, None)  # if an error comes before it is placed, the next sync places it
        try:
            for path in made.remove:
                self._remove(path)
                record.pop(path, None)
            for path in made.make:
                self._make(self.root / path, self._wanted[path])
                record[path] = _Placed(self._wanted[path])
            for path in made.write:
                digest = digest_of(self._wanted, path)
                record[path] = self._write(path, move=last_of[digest] == path)
        finally:
            self._write_record(record)
            shutil.rmtree(self._incoming, ignore_errors=True)
            with suppress(OSError):
                self._incoming.parent.rmdir()
        paths = WorkspacePaths(str(self.root), list(directories), list(imports))
        set_in_force(self._directory, paths)
        return made

    def _write(self, path: str, *, move: bool) -> _Placed:
        entry = self._wanted[path]
        assert isinstance(entry, File)
        target, source = self.root / path, self._incoming / entry.digest
        if not entry.stamp[1] and not source.exists():
            source.touch()  # an empty file has no pieces
        if not move:
            source = Path(shutil.copyfile(source, self._incoming / "copied"))
        os.chmod(source, entry.mode)
        # The time of the client's file, by which Python knows whether its bytecode is current.
        os.utime(source, ns=(entry.stamp[0], entry.stamp[0]))
        _clear_for(target)
        source.replace(target)
        return _Placed(entry, _stamp(target))

    def _make(self, target: Path, entry: Entry) -> None:
        if isinstance(entry, Link):
            _clear_for(target)
            new = self._incoming / "link"
            new.symlink_to(entry.target)
            new.replace(target)
            return
        if target.is_symlink() or target.is_file():
            target.unlink()
        target.mkdir(parents=True, exist_ok=True)

    def _remove(self, path: str) -> None:
        target = self.root / path
        if target.is_symlink() or not target.is_dir():
            target.unlink(missing_ok=True)
            return
        # Bytecode alone would leave a package that can still be imported, without its modules.
        shutil.rmtree(target / "__pycache__", ignore_errors=True)
        with suppress(OSError):  # it has files that a program has written
            target.rmdir()

    def _is_intact(self, path: str, placed: _Placed) -> bool:
        target, entry = self.root / path, placed.entry
        if isinstance(entry, File):
            return placed.stamp is not None and _stamp(target) == placed.stamp
        if isinstance(entry, Link):
            return target.is_symlink() and os.readlink(target) == entry.target
        return target.is_dir() and not target.is_symlink()

    def _record(self) -> dict[str, _Placed]:
        try:
            text = (self._directory / RECORD).read_bytes()
        except FileNotFoundError:
            return {}
        return msgspec.json.decode(text, type=dict[str, _Placed])

    def _write_record(self, record: dict[str, _Placed]) -> None:
        new = self._directory / f"{RECORD}.new"
        new.write_bytes(msgspec.json.encode(record))
        new.replace(self._directory / RECORD)


def _clear_for(target: Path) -> None:
    """Remove a directory in the place of a file or link, unless it has files of a program.

    Raises:
        FileExistsError: it has.
    """
    if target.is_symlink() or not target.is_dir():
        return
    try:
        target.rmdir()
    except OSError:
        raise FileExistsError(
            f"{target} is a directory with files that the workspace does not have, and the "
            "workspace has a file or a link there; move those files away"
        ) from None


def _stamp(path: Path) -> Stamp | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size)
