"""The key pairs of a job: made once, kept in files that only their user can read.

Runs in: `monarch keys`, and every process that listens or dials beyond its host, before it has a
ZeroMQ context.
Invariants: a secret exists only in memory, in a file of mode 0600, and in the pipe by which a
launcher hands it to a host: it has no text and cannot be pickled. A file that others could read or
write is refused, and so is a directory in which they could replace it.

    job.public      the public keys of the job by role; every process needs it
    worker.key      the pair of a worker, which serves a host
    owner.key       the pair of an owner, which may act
    observer.key    the pair of an observer, which may look
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import zmq

from monarch._src.net.state.access import KEY_LENGTH, TRUST_ALL, AllowList, Role
from monarch._src.wire.msgpack_text import UNREADABLE

VERSION = 1
PUBLIC = "job.public"
_WHO = {
    Role.WORKER: "a worker, which serves a host",
    Role.OWNER: "an owner, which may act",
    Role.OBSERVER: "an observer, which may look",
}
LARGEST = 1 << 20  # bytes of a file of keys


class Secret:
    """A secret key. Its repr is empty, and it cannot leave this process by pickle."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The key as Z85 text, for ZeroMQ; or the content of a key file, for another host."""
        return self._value

    def __repr__(self) -> str:
        return "<secret key>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key stays in its process; give others the path of its file")


class Keys:
    """The key pair by which a process authenticates itself, and the keys that it accepts."""

    def __init__(self, role: Role, public: str, secret: Secret, allowed: AllowList) -> None:
        self.role = role
        self.public = public
        self.secret = secret
        self.allowed = allowed

    def __repr__(self) -> str:
        return f"<Keys of job {self.allowed.job!r} as {self.role.value}>"


class _PublicFile(msgspec.Struct):
    version: int
    job: str
    worker: list[str]
    owner: list[str]
    observer: list[str]


class _KeyFile(msgspec.Struct):
    version: int
    job: str
    role: str
    public: str
    secret: str

    def __repr__(self) -> str:
        return f"<key of job {self.job!r} as {self.role}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("job", self.job), ("role", self.role)]


def key_file(role: Role) -> str:
    """The name of the file of that role's pair."""
    return f"{role.value}.key"


# --- making ---------------------------------------------------------------------------------------


def make(directory: str | os.PathLike[str], job: str = "") -> AllowList:
    """Make the pairs of a new job in that directory: all files at once, or none.

    Raises:
        FileExistsError: the path exists. NotADirectoryError, PermissionError, OSError: the
            directory cannot be made.
    """
    path = Path(os.path.abspath(os.path.expanduser(os.fspath(directory))))
    job = job or f"{path.name}-{secrets.token_hex(4)}"
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(
            f"{path} exists already, and keys in use are not replaced; give another directory, or "
            "remove that one and restart the workers that use it"
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    pairs = {role: _new_pair() for role in Role}
    publics = {role: [public] for role, (public, _) in pairs.items()}
    new = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        for role, (public, secret) in pairs.items():
            text = secret.reveal().decode()
            _write(new / key_file(role), _KeyFile(VERSION, job, role.value, public, text))
        _write(
            new / PUBLIC,
            _PublicFile(VERSION, job, *(publics[role] for role in Role)),
        )
        os.rename(new, path)  # onto nothing, or onto an empty directory
    except BaseException:
        for left in new.iterdir():
            left.unlink()
        new.rmdir()
        raise
    return AllowList(job, publics)


def _new_pair() -> tuple[str, Secret]:
    public, secret = zmq.curve_keypair()
    return public.decode(), Secret(secret)


def _write(path: Path, content: msgspec.Struct) -> None:
    _write_bytes(path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def _write_bytes(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)


# --- keys for another host ------------------------------------------------------------------------


def for_a_worker(directory: str | os.PathLike[str]) -> dict[str, Secret]:
    """The files with which a host serves the job, by name, for `install`. Raises as `load`."""
    load(directory, None, Role.WORKER)
    names = (PUBLIC, key_file(Role.WORKER))
    return {name: Secret(Path(directory, name).read_bytes()) for name in names}


def install(directory: Path, files: Mapping[str, Secret]) -> None:
    """Write these files into a new directory that only this user can enter.

    Raises:
        OSError: it cannot be made. ValueError: a name is not that of a key file.
    """
    directory.mkdir(mode=0o700)
    for name, text in files.items():
        if name not in (PUBLIC, *map(key_file, Role)):
            raise ValueError(f"{name!r} is not the name of a key file")
        _write_bytes(directory / name, text.reveal())


# --- reading --------------------------------------------------------------------------------------


def load(
    ca: str | os.PathLike[str],
    private_key: str | os.PathLike[str] | None,
    role: Role,
    *,
    only: bool = False,
) -> Keys:
    """The keys with which this process takes part in the job.

    Args:
        ca: the directory of the job's keys, or its file `job.public`.
        private_key: the file of the pair to use; by default that of `role` beside the public keys.
        only: refuse a pair of another role, with which nothing would work.

    Raises:
        FileNotFoundError: there is no such file. PermissionError: others could read or write one.
        ValueError: a file is damaged, of another job, or listed with another role.
    """
    if os.fspath(ca) == TRUST_ALL:
        raise ValueError(f"{TRUST_ALL!r} stands for no keys; give their directory")
    public_file = Path(os.path.expanduser(os.fspath(ca)))
    if public_file.is_dir():
        public_file /= PUBLIC
    allowed = load_public(public_file)
    own = public_file.parent / key_file(role) if private_key is None else Path(private_key)
    found = _read(Path(os.path.expanduser(own)), _KeyFile)
    if found.job != allowed.job:
        raise ValueError(f"{own} is of job {found.job!r}, and {public_file} of {allowed.job!r}")
    _check_pair(own, found)
    listed = allowed.role_of(found.public)
    if listed is None or listed.value != found.role:
        said = "not listed" if listed is None else f"listed as {listed.value}"
        raise ValueError(f"{own} is a key for {found.role}, and in {public_file} it is {said}")
    if only and listed is not role:
        raise PermissionError(
            f"{own} is the key of {_WHO[listed]}; this needs that of {_WHO[role]}: {key_file(role)}"
        )
    return Keys(listed, found.public, Secret(found.secret.encode()), allowed)


def load_public(path: str | os.PathLike[str]) -> AllowList:
    """The public keys of a job, from its file `job.public`. Raises as `load`."""
    where = Path(path)
    found = _read(where, _PublicFile)
    try:
        return AllowList(found.job, {role: getattr(found, role.value) for role in Role})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _check_pair(where: Path, found: _KeyFile) -> None:
    # The error does not describe the fault of a secret, because that would reveal some of it.
    try:
        fits = len(found.secret) == KEY_LENGTH and (
            zmq.curve_public(found.secret.encode()).decode() == found.public
        )
    except (ValueError, zmq.ZMQError):
        fits = False
    if not fits:
        raise ValueError(f"{where} is damaged: its two keys are not a pair; make new keys")


T = TypeVar("T", _PublicFile, _KeyFile)


def _read(path: Path, kind: type[T]) -> T:
    _check_directory(path.absolute().parent)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no {path}; make keys with `monarch keys make DIRECTORY`, or copy those of "
            "the job here"
        ) from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise PermissionError(
            f"{path} is a symbolic link, whose target may be changed; copy the file here"
        ) from None
    try:
        _check_private(path, os.fstat(fd))
        data = os.read(fd, LARGEST)
    finally:
        os.close(fd)
    return _parsed(path, data, kind)


def _parsed(path: Path, data: bytes, kind: type[T]) -> T:
    damaged = f"{path} is not a file of keys, or is damaged; make new keys"
    try:
        found: Any = msgspec.json.decode(data, type=kind)
    except UNREADABLE:
        raise ValueError(damaged) from None  # msgspec's text could quote a secret
    if found.version != VERSION:
        raise ValueError(f"{path} is of version {found.version}; this monarch reads {VERSION}")
    return found


def _check_private(path: Path, found: os.stat_result) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode):
        raise PermissionError(f"{path} is not a plain file; copy the one of the job here")
    if found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to user {found.st_uid}; copy it to one of your own")
    if mode & 0o077:
        raise PermissionError(
            f"others can read or write {path} (mode {mode:04o}); run `chmod 600 {path}`, and make "
            "new keys if another user may have read it"
        )


def _check_directory(directory: Path) -> None:
    """Refuse a directory in which other users could replace files."""
    try:
        found = os.stat(directory)
    except OSError:
        return  # the file does not exist either, which is reported next
    if found.st_uid not in (0, os.getuid()):
        raise PermissionError(f"{directory} belongs to user {found.st_uid}, who can replace keys")
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise PermissionError(
            f"others can replace files in {directory} (mode {stat.S_IMODE(found.st_mode):04o}); "
            f"run `chmod go-w {directory}`"
        )
