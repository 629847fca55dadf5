"""The private directory with the sockets and boards of one session.

Runs in: the process that starts a session, which makes the directory, and the host agent, which
holds its lock and removes it. Invariants: mode 0700, owned by this user; short enough that a socket
path in it fits `sockaddr_un`. A directory whose lock is free belongs to a session that has ended,
and may be swept.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PREFIX = "monarch-"
GONE = ".gone"  # ends the name of a directory that is being removed
LOCK = "lock"
AGENT_LOG = "agent.log"
WORKSPACE = "workspace"  # a link to the copy of the client's directories (`host.workspace_paths`)
AWAY = "away"  # lists what other hosts keep of the session; the directory stays until it has ended
_LONGEST = 103 - len("/client-0123456789abcdef.sock")  # macOS: sun_path has 104 bytes
_IN_MEMORY = "/dev/shm"
_LOGIND = "/run/systemd/system"  # exists where systemd runs, and so perhaps logind
_INITIAL = {"ipc": 0xEFFFFFFF, "pid": 0xEFFFFFFC}  # the namespaces of Linux itself, by inode
_ROOM = 4 << 20  # bytes; a session takes some KiB, and the log of its agent may grow


def base_directory(*, logs: bool = False) -> Path:
    """The parent of session directories: the user's runtime directory, else memory or temp.

    `logs`: choose a parent for files that may become large.
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
    """Whether the file system in memory has room, and keeps the files of a user who logs out.

    A socket on a disk adds a twentieth to the start of a process. But logind removes a user's files
    in memory at logout (RemoveIPC). Hosts with logind mostly have a runtime directory, which is in
    memory too.
    """
    if os.path.isdir(_LOGIND) or not _memory_is_ours():
        return False
    try:
        found = os.statvfs(_IN_MEMORY)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= _ROOM


def _memory_is_ours() -> bool:
    """Whether all processes that share this memory see each other, and no logind cleans it.

    A container may share the memory of its host (`--ipc=host`) but not its processes.
    """
    try:
        if _namespace("ipc") != _INITIAL["ipc"]:
            return True
        return os.getuid() == 0 and _namespace("pid") == _INITIAL["pid"]
    except OSError:  # not Linux, or /proc is restricted
        return False


def _namespace(kind: str) -> int:
    return os.stat(f"/proc/self/ns/{kind}").st_ino


def search_path() -> list[Path]:
    """All directories in which programs of this user may keep sessions, in any environment."""
    found = [*_candidates(logs=True), f"/run/user/{os.getuid()}"]
    if _memory_is_ours():
        found.append(_IN_MEMORY)
    return [Path(p) for p in dict.fromkeys(map(os.path.realpath, found)) if os.path.isdir(p)]


def find(bases: Iterable[Path]) -> list[Path]:
    """The session directories of all users in these, oldest first."""
    found = [path for base in bases for path in base.glob(PREFIX + "*") if path.is_dir()]
    return sorted(found, key=_made_at)


def is_held(directory: Path) -> bool | None:
    """Whether the agent of that session is alive; None if it had no agent yet."""
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


def may_start(directory: Path) -> bool:
    """Whether a directory without an agent holds no more than a session that is starting does.

    If not, it belongs to some other program, and only its name is like that of a session.
    """
    with suppress(OSError), os.scandir(directory) as entries:
        return all(
            entry.name == AGENT_LOG
            or entry.name.startswith(LOCK)
            or stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
            for entry in entries
        )
    return False


def _made_at(path: Path) -> float:
    try:
        return path.stat().st_ctime
    except OSError:
        return 0.0


def make() -> Path:
    """Make a session directory, and sweep those of sessions that have ended."""
    import tempfile

    base = base_directory()
    sweep(base)
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))


def hold(directory: Path, content: bytes = b"") -> int:
    """Take the lock of a live session; returns its descriptor, which holds it until it is closed.

    The lock file has this content from the moment at which it has its name.

    Raises:
        PermissionError: other users could enter the directory. FileExistsError: it has a lock file.
    """
    check_private(directory)
    # Locked before it gets its name, because a free lock by that name marks a dead session.
    nameless = directory / f"{LOCK}-{os.getpid()}"
    fd = os.open(nameless, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, content)
        os.link(nameless, directory / LOCK)
    except BaseException:
        os.close(fd)
        raise
    finally:
        os.unlink(nameless)
    return fd


def check_private(directory: Path) -> None:
    """Refuse a directory that other users could enter.

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
    """Remove a session directory with its content, and the copy of its workspace, if it exists.

    It is renamed first, so that a process that starts meanwhile fails to bind its socket, and
    leaves none behind.
    """
    gone = directory.with_name(f"{directory.name}{GONE}")
    try:
        directory.rename(gone)
    except FileNotFoundError:
        return
    except OSError:
        gone = directory  # another process removes it too
    _remove_tree(gone)


def _remove_tree(directory: Path) -> None:
    import shutil

    # In this order: as long as the copy exists, the link to it does.
    with suppress(OSError):
        shutil.rmtree(os.readlink(directory / WORKSPACE), ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def finish_removals(base: Path) -> None:
    """Remove directories whose removal was cut off, as by SIGKILL."""
    for path in base.glob(f"{PREFIX}*{GONE}"):
        try:
            check_private(path)
        except OSError:
            continue
        _remove_tree(path)


def sweep(base: Path) -> list[Path]:
    """Remove directories of this user's dead sessions, and return them.

    Sweeping skips a directory without a lock file, whose session may be about to start, and one
    that lists what other hosts still keep of its session.
    """
    finish_removals(base)
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
    """The address that a node of that site announces to nodes of any site."""
    return f"{site}|{pipe}" if site else pipe


def site_and_pipe(address: str) -> tuple[str, str]:
    """The inverse of `at_site`."""
    if address.startswith("ipc://"):
        return "", address
    site, _, pipe = address.partition("|")
    return site, pipe
