"""The argument and the result of `HostMesh.sync_workspace`. No I/O, but for `merge`."""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, cast

import msgspec

PathLike = str | os.PathLike[str]
MOST_BYTES = 1 << 30
NEVER = frozenset(
    (
        ".git", ".hg", ".ipynb_checkpoints", ".monarch", ".mypy_cache", ".nox", ".pytest_cache",
        ".ruff_cache", ".svn", ".tox", "__pycache__", "node_modules",
    )
)  # fmt: skip
"""Names that are not copied: version control, caches, and what a host makes for itself."""


class Workspace:
    """Directories of your program, and their names on hosts. See `HostMesh.sync_workspace`.

    Caches, version control (`.git`), `node_modules`, virtual environments and compiled bytecode are
    left out. Symbolic links are copied as links.

    Example:
        Workspace("~/project")                                    # as `project`
        Workspace(["~/project", "~/library"])                     # as `project` and `library`
        Workspace({"~/project": "", "~/library": "deps/library"})  # `project` is the root itself
        Workspace("~/project", exclude=["data", "*.ckpt"])
    """

    def __init__(
        self,
        dirs: PathLike | Iterable[PathLike] | Mapping[Any, str] | None = None,
        env: None = None,
        *,
        exclude: Iterable[str] = (),
        max_bytes: int = MOST_BYTES,
    ) -> None:
        """Args:
            dirs: local directories, or a mapping from them to paths below the root on a host. `~`
                is your home directory. None: no directories.
            env: environments are not copied; only None is taken.
            exclude: shell patterns of further files and directories to leave out, such as
                `"*.ckpt"`. One with a `/` is matched with the whole path below its directory, any
                other with each name in it.
            max_bytes: the most that all files together may have. More is an error, since most
                often it is data that the program does not need on every host.

        Raises:
            ValueError: two directories with one name; a name on hosts that is absolute or leads out
                of the root; an `env`.
            TypeError: an argument of another type.
        """  # fmt: skip
        if env is not None:
            raise ValueError(
                f"env={env!r}: environments are not copied to hosts. Install the packages there, "
                "and leave env out"
            )
        if isinstance(exclude, str):
            raise TypeError(f"exclude={exclude!r} is text; give a list of patterns")
        self.env = env
        self.exclude = tuple(exclude)
        self.max_bytes = max_bytes
        self.dirs: dict[Path, str] = {}
        for source, name in _pairs(dirs):
            path = Path(os.path.abspath(Path(source).expanduser()))
            own = path.name if name is None else _checked_name(path, name)
            if own in self.dirs.values():
                other = next(one for one, its in self.dirs.items() if its == own)
                raise ValueError(
                    f"{other} and {path} would both be {own or 'the root'!r} on hosts; give them "
                    f'names: {{"{other}": "one", "{path}": "other"}}'
                )
            self.dirs[path] = own

    @classmethod
    def null(cls) -> Workspace:
        """A workspace without directories."""
        return cls()

    @classmethod
    def of(cls, workspace: Workspace | PathLike | Iterable[PathLike]) -> Workspace:
        """That workspace, or one of that directory or those directories.

        Raises the exceptions of the constructor.
        """
        return workspace if isinstance(workspace, Workspace) else cls(workspace)

    def merge(self, outdir: PathLike) -> None:
        """Copy all directories into `outdir`, under their names on hosts.

        Raises:
            OSError: a directory cannot be read, or `outdir` not be written.
        """
        Path(outdir).mkdir(parents=True, exist_ok=True)
        for source, name in self.dirs.items():
            shutil.copytree(
                source, Path(outdir) / name, symlinks=True, dirs_exist_ok=True,
                ignore=lambda folder, names, top=source: {
                    one for one in names
                    if self.leaves_out(PurePosixPath(folder, one).relative_to(top).as_posix())
                },
            )  # fmt: skip

    def leaves_out(self, path: str) -> bool:
        """Whether a file or directory, by its path below its directory, is not copied."""
        name = path.rpartition("/")[2]
        if name in NEVER or name.endswith((".pyc", ".pyo")):
            return True
        return any(
            fnmatch.fnmatchcase(path if "/" in pattern else name, pattern.rstrip("/"))
            for pattern in self.exclude
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Workspace):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return tuple(self.dirs.items()), self.exclude, self.max_bytes

    def __repr__(self) -> str:
        parts = [repr({str(path): name for path, name in self.dirs.items()})]
        if self.exclude:
            parts.append(f"exclude={list(self.exclude)}")
        return f"Workspace({', '.join(parts)})"


class WorkspaceSync(msgspec.Struct, frozen=True):
    """The result of `sync_workspace`. `sent` counts a file once, however many hosts got it."""

    hosts: int
    files: int
    sent: int
    sent_bytes: int
    placed: int  # files, links and directories that changed on at least one host
    removed: int
    problems: tuple[str, ...] = ()  # modules that could not be reloaded, a line each

    def __repr__(self) -> str:
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        if not self.hosts:
            return "nothing to send: this host has the files"
        files = "1 file" if self.files == 1 else f"{self.files} files"
        text = f"{files} on {hosts}: "
        if not (self.sent or self.placed or self.removed):
            text += "nothing has changed"
        else:
            removed = f", {self.removed} removed" if self.removed else ""
            text += f"{self.sent} sent ({size_text(self.sent_bytes)}){removed}"
        return "\n".join((text, *self.problems))


def size_text(size: int) -> str:
    """A number of bytes in a unit that suits it."""
    for unit, one in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= one:
            return f"{size / one:.1f} {unit}"
    return f"{size} B"


def _pairs(dirs: Any) -> list[tuple[PathLike, str | None]]:
    if dirs is None:
        return []
    if isinstance(dirs, Mapping):
        return [(_path(one), name) for one, name in cast("Mapping[Any, str]", dirs).items()]
    if isinstance(dirs, str | os.PathLike):
        return [(_path(cast("PathLike", dirs)), None)]
    if not isinstance(dirs, Iterable):
        raise TypeError(f"dirs={dirs!r}: give a directory, a list of them, or a mapping to names")
    return [(_path(one), None) for one in cast("Iterable[Any]", dirs)]


def _path(value: Any) -> PathLike:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{value!r} is no directory: give its path")
    if not os.fspath(cast("PathLike", value)):
        raise ValueError('"" is no directory; the working directory is "."')
    return cast("PathLike", value)


def _checked_name(path: Path, name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of {path} on hosts is {name!r}; give a path as text")
    plain = os.path.normpath(name) if name else ""
    if os.path.isabs(plain) or plain.split(os.sep)[0] == "..":
        raise ValueError(
            f"the name of {path} on hosts is {name!r}, which is not below the root of the "
            'workspace there; give a path such as "project"'
        )
    return "" if plain == "." else plain
