"""The private directory in which the sockets and boards of one session live.

Runs in: the process that starts a session (makes it) and its host agent (holds its lock, removes
it). Invariants: mode 0700, owned by this user; short enough that a socket path in it fits
`sockaddr_un`; a directory whose lock nobody holds belongs to a session that is gone, and may be
swept.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path

PREFIX = "monarch-"
LOCK = "lock"
AWAY = "away"  # what of it other hosts keep, which is to be ended before this is removed
_LONGEST = 103 - len("/client-0123456789abcdef.sock")  # macOS: sun_path has 104 bytes
_IN_MEMORY = "/dev/shm"
_LOGIND = "/run/systemd/system"  # where systemd runs, and so may logind
_INITIAL = {"ipc": 0xEFFFFFFF, "pid": 0xEFFFFFFC}  # the namespaces of Linux itself, by inode
_ROOM = 4 << 20  # bytes; a session takes some KiB, and the log of its agent may grow


def base_directory(*, logs: bool = False) -> Path:
    """Where session directories go: the user's runtime directory if usable, else memory or temp.

    `logs`: it is for something that may become large.
    """
    for candidate in _candidates(logs):
        if len(candidate) + len(PREFIX) + 9 > _LONGEST:
            continue
        if os.path.isdir(candidate) and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    raise OSError(
        "no writable directory with a short path for sockets; set TMPDIR to one (say /tmp)"
    )


def _candidates(logs: bool) -> list[str]:
    import tempfile  # with shutil, 4 ms to load; an agent and its procs need neither

    named = [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"]
    if not logs and _memory_lasts():
        named.insert(1, _IN_MEMORY)
    return [candidate for candidate in named if candidate]


def _memory_lasts() -> bool:
    """Whether there is a file system in memory, with room, in which sessions stay.

    To make a socket on a disk takes a process as long as a twentieth of its start. But logind
    removes what a user has in memory when he has logged out (RemoveIPC). Where that runs there
    mostly is a runtime directory, which is in memory too.
    """
    if os.path.isdir(_LOGIND) or not _memory_is_ours():
        return False
    try:
        found = os.statvfs(_IN_MEMORY)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= _ROOM


def _memory_is_ours() -> bool:
    """Whether who shares that memory also sees our processes, and no logind knows of us.

    A container may be given that of its host (`--ipc=host`), where others have theirs too.
    """
    try:
        if _namespace("ipc") != _INITIAL["ipc"]:
            return True
        return os.getuid() == 0 and _namespace("pid") == _INITIAL["pid"]
    except OSError:  # no Linux, or none that tells
        return False


def _namespace(kind: str) -> int:
    return os.stat(f"/proc/self/ns/{kind}").st_ino


def search_path() -> list[Path]:
    """Where programs of this user may have sessions, whatever their environment."""
    found = [*_candidates(logs=True), f"/run/user/{os.getuid()}"]
    if _memory_is_ours():
        found.append(_IN_MEMORY)
    return [Path(p) for p in dict.fromkeys(map(os.path.realpath, found)) if os.path.isdir(p)]


def find(bases: Iterable[Path]) -> list[Path]:
    """The session directories in these, whoever they belong to, oldest first."""
    found = [path for base in bases for path in base.glob(PREFIX + "*") if path.is_dir()]
    return sorted(found, key=_made_at)


def is_held(directory: Path) -> bool | None:
    """Whether the agent of that session lives; None if no agent has been there."""
    try:
        fd = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def _made_at(path: Path) -> float:
    try:
        return path.stat().st_ctime
    except OSError:
        return 0.0


def make() -> Path:
    """A new session directory, after sweeping those of sessions that are gone."""
    import tempfile

    base = base_directory()
    sweep(base)
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))


def hold(directory: Path, said: bytes = b"") -> int:
    """Take the lock that says the session lives; returns its descriptor, held until closed.

    `said` is what the file of the lock holds, from the moment at which it can be found.

    Raises:
        PermissionError: others could enter the directory. FileExistsError: it was held before.
    """
    check_private(directory)
    # Locked before it gets its name: a lock by that name that nobody holds tells of a dead session.
    nameless = directory / f"{LOCK}-{os.getpid()}"
    fd = os.open(nameless, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, said)
        os.link(nameless, directory / LOCK)
    except BaseException:
        os.close(fd)
        raise
    finally:
        os.unlink(nameless)
    return fd


def check_private(directory: Path) -> None:
    """Refuse a directory that others could enter.

    Raises:
        PermissionError: it is not a real directory of this user with mode 0700.
    """
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{directory} must be a directory of user {os.getuid()} with mode 0700; it has mode "
            f"{stat.S_IMODE(found.st_mode):04o} and belongs to {found.st_uid}; run `chmod 700 "
            f"{directory}` if it is yours"
        )


def remove(directory: Path) -> None:
    """Remove a session directory and all in it; one that is gone already is no error.

    Under another name, so that processes which are just beginning there find no place for their
    sockets, rather than leaving them behind.
    """
    gone = directory.with_name(f"{directory.name}.gone")
    try:
        directory.rename(gone)
    except FileNotFoundError:
        return
    except OSError:
        gone = directory  # somebody removes it as well
    import shutil

    shutil.rmtree(gone, ignore_errors=True)


def sweep(base: Path) -> list[Path]:
    """Remove directories of this user's dead sessions; returns what was removed.

    A directory without a lock file is left alone: its session may be about to start. So is one
    that says what other hosts still keep of it.
    """
    removed: list[Path] = []
    for path in base.glob(PREFIX + "*"):
        try:
            check_private(path)
            fd = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        if (path / AWAY).exists():
            os.close(fd)
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            remove(path)
            removed.append(path)
        finally:
            os.close(fd)
    return removed


def address_of(directory: Path | str, node: str) -> str:
    """The address at which that node of this session listens."""
    return f"ipc://{directory}/{node}"


def at_site(site: str, pipe: str) -> str:
    """How a node of that site tells others where it listens."""
    return f"{site}|{pipe}" if site else pipe


def site_and_pipe(told: str) -> tuple[str, str]:
    """What `at_site` was given."""
    if told.startswith("ipc://"):
        return "", told
    site, _, pipe = told.partition("|")
    return site, pipe
