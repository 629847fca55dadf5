"""The copy of the client's directories on a host: its place, and the import path of procs there.

Runs in: zygotes and procs as they start, and the actors of `workspace`.
Owns: `workspace.json` in the session directory of the host, which says that the copy is in force,
and `workspace`, a link to the copy.
Invariants: a worker removes `workspace.json` when its client leaves. The copy stays for the next
client, which then sends less, and goes with the session directory.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import msgspec

from monarch._src.net.session_directory import PREFIX, WORKSPACE, base_directory

IN_FORCE = "workspace.json"
ROOT_PREFIX = "monarch_workspace_"
VARIABLE = "WORKSPACE_DIR"
"""In the environment of a worker: where to place the copy. In that of procs: where it is."""

_IN_A_COPY = re.compile(rf"/{ROOT_PREFIX}[^/]+(?=/|$)")


class WorkspacePaths(msgspec.Struct, frozen=True):
    """A copy that is in force on this host."""

    root: str
    # Directories of the client, and their names below `root`; "" is `root` itself.
    directories: list[tuple[str, str]]
    imports: list[str]  # directories below `root` that procs import from, beside those they had

    def here(self, path: str) -> str:
        """The copy of that path of the client on this host; the path itself if it has none."""
        copy = self._copy_of(path)
        return path if copy is None or not os.path.exists(copy) else copy

    def _copy_of(self, path: str) -> str | None:
        for directory, name in self.directories:
            if path == directory or path.startswith(directory + os.sep):
                return os.path.normpath(os.path.join(self.root, name, path[len(directory) + 1 :]))
        # A proc of another host sends paths of its own copy.
        found = _IN_A_COPY.search(path)
        return None if found is None else self.root + path[found.end() :]

    def import_path(self, path: list[str]) -> list[str]:
        """An import path of the client with the copies in place of its directories."""
        mapped = [self.here(one) if one else one for one in path]
        added = [os.path.normpath(os.path.join(self.root, one)) for one in self.imports]
        return list(dict.fromkeys([*(one for one in added if one not in mapped), *mapped]))


def workspace_paths(directory: Path | str) -> WorkspacePaths | None:
    """The copy that is in force for the session of that directory, if there is one."""
    try:
        with open(os.path.join(directory, IN_FORCE), "rb") as file:
            return msgspec.json.decode(file.read(), type=WorkspacePaths)
    except FileNotFoundError:
        return None


def root_for(directory: Path) -> Path:
    """Make the directory of the copy for the session of `directory`, if there is none yet.

    It is on a disk, since a copy may be large and session directories are in memory.

    Raises:
        OSError: it cannot be made.
    """
    link = directory / WORKSPACE
    named = os.environ.get(VARIABLE)
    if named and not link.is_symlink():
        root = Path(named)
        root.mkdir(parents=True, exist_ok=True)
        return root
    if not link.is_symlink():
        name = ROOT_PREFIX + directory.name.removeprefix(PREFIX)
        # The link comes first, so that no directory is left behind.
        link.symlink_to(base_directory(logs=True) / name)
    root = link.readlink()
    root.mkdir(mode=0o700, exist_ok=True)
    return root


def set_in_force(directory: Path, paths: WorkspacePaths) -> None:
    """Have all procs of that session directory that start from now on use the copy."""
    new = directory / f"{IN_FORCE}.new"
    new.write_bytes(msgspec.json.encode(paths))
    new.replace(directory / IN_FORCE)


def end_force(directory: Path) -> None:
    """Have procs that start from now on use no copy. Idempotent."""
    (directory / IN_FORCE).unlink(missing_ok=True)


def enter(paths: WorkspacePaths) -> None:
    """Have this process import from the copy, and find it by `WORKSPACE_DIR`."""
    sys.path[:] = paths.import_path(sys.path)
    os.environ[VARIABLE] = paths.root
