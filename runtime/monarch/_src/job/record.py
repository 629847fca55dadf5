"""Records of jobs: where they are, and how they are written and read again. JSON, never a pickle.

Runs in: any process. Records by name, and the keys of jobs, are not in the runtime directory, which
is removed at the last logout of its user: a job outlives that, and could not be ended without its
record.
Invariants: reading a record runs no code of it; it names a class, which is imported, and nothing
else. A record is written whole or not at all, and other users cannot read it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, ClassVar, TypeVar, get_origin, get_type_hints

import msgspec

from monarch._src.errors import JobError
from monarch._src.job.launchers import local_workers
from monarch._src.net.session_directory import check_private
from monarch._src.wire.msgpack_text import UNREADABLE

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
FORMAT = 1
T = TypeVar("T")


class JobRecord(msgspec.Struct, frozen=True):
    """A job as it is written. `kind` is `module:Class`; `applied` a time of day, in seconds."""

    format: int
    kind: str
    apply_id: str | None
    applied: float | None
    values: dict[str, Any]


def values_of(job: object, leave_out: frozenset[str]) -> dict[str, Any]:
    """The attributes of a job as JSON values.

    Raises:
        TypeError: an attribute would not be the same when it is read again.
    """
    hints = _hints(type(job))
    found: dict[str, Any] = {}
    for name, value in vars(job).items():
        if name in leave_out:
            continue
        try:
            plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)
            same = _typed(hints.get(name), plain) == value
        except (TypeError, ValueError, msgspec.ValidationError):
            same = False
            plain = None
        if not same:
            raise TypeError(
                f"{type(job).__name__}.{name} is a {type(value).__name__} that JSON cannot hold as "
                "it is; annotate it in the class, with builtin types, Path or a msgspec.Struct, or "
                "name it in `not_dumped`"
            )
        found[name] = plain
    return found


def restored(
    kind: type, values: Mapping[str, Any], leave_out: frozenset[str], where: str
) -> dict[str, Any]:
    """The attributes of a job of that class, with their types, from JSON values.

    Raises:
        JobError: a value does not fit its annotation, is not an attribute of the class, or an
            annotated attribute is missing.
    """
    hints = _hints(kind)
    found: dict[str, Any] = {}
    others = [name for name in values if name not in hints and hasattr(kind, name)]
    if never := [*others, *(name for name in values if name in leave_out)]:
        # It would hide a method, or overwrite an attribute of the runtime.
        raise not_that(kind, where, f"{never[0]} is never part of a record")
    for name, plain in values.items():
        try:
            found[name] = _typed(hints.get(name), plain)
        except msgspec.ValidationError as error:
            raise not_that(kind, where, f"{name}: {error}") from None
    missing = [
        name
        for name, hint in hints.items()
        if name not in values and name not in leave_out
        and not hasattr(kind, name) and get_origin(hint) is not ClassVar
    ]  # fmt: skip
    if missing:
        raise not_that(kind, where, f"{', '.join(missing)} is missing")
    return found


def not_that(kind: type, where: str, why: str) -> JobError:
    """The error for a record that does not hold a job of that class."""
    return JobError(
        f"{where} does not hold a {kind.__name__} as this version writes one: {why}; remove the "
        "file to reserve new hosts"
    )


def _typed(hint: Any, plain: Any) -> Any:
    if hint is None:
        return plain
    return msgspec.convert(plain, hint, str_keys=True, dec_hook=_of_type)


def _plain(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"JSON has no {type(value).__name__}")


def _of_type(kind: Any, plain: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(plain, str):
        return kind(plain)
    raise TypeError(f"JSON has no {kind}")


def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def kind_of(job: object) -> str:
    """The name of the class of that job in records."""
    return f"{type(job).__module__}:{type(job).__qualname__}"


def class_of(kind: str, base: type[T], where: str) -> type[T]:
    """The class that a record names.

    Raises:
        JobError: it cannot be imported, or is not a job.
    """
    module, _, name = kind.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise JobError(
            f"{where} records a job of class {kind}, which cannot be imported: {error}"
        ) from None
    if not isinstance(found, type) or not issubclass(found, base) or inspect.isabstract(found):
        raise JobError(f"{where} names {kind}, which is not a job class")
    return found


def encode(record: JobRecord) -> bytes:
    """The record as JSON that a person can read."""
    return msgspec.json.format(msgspec.json.encode(record))


def decode(text: bytes, where: str) -> JobRecord:
    """The record in that JSON. `where` names its source in errors.

    Raises:
        JobError: not a record, or one of another format.
    """
    try:
        record = msgspec.json.decode(text, type=JobRecord)
    except UNREADABLE as error:
        raise JobError(
            f"{where} is not a record of a job ({error}); remove the file to reserve new hosts"
        ) from None
    if record.format != FORMAT:
        raise JobError(
            f"{where} is a record of format {record.format}, and this version reads {FORMAT}; "
            "remove the file to reserve new hosts"
        )
    return record


def write(path: Path, record: JobRecord) -> None:
    """Replace the record at that path. A symbolic link stays, and its target is replaced."""
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # mode 0600
    try:
        with open(fd, "wb") as file:
            file.write(encode(record))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: Path) -> JobRecord:
    """Read the record at that path.

    Raises:
        FileNotFoundError: there is no file. JobError: not a record, or one of another format.
        PermissionError: the file belongs to another user, and so may name hosts of that user.
    """
    with open(path, "rb") as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner not in (os.getuid(), 0):
            raise PermissionError(
                f"{path} belongs to user {owner}; jobs of other users are not loaded"
            )
        text = file.read()
    return decode(text, str(path))


# --- their paths ----------------------------------------------------------------------------------


def jobs_directory() -> Path:
    """The directory of this user's jobs; made, with mode 0700, if it does not exist.

    Raises:
        PermissionError: other users could enter it.
    """
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    found = Path(state).expanduser() / "monarch" / "jobs"
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(found)
    return found


def new_directory() -> Path:
    """Make a directory in `jobs_directory()` for the files of one job."""
    return Path(tempfile.mkdtemp(prefix=local_workers.PREFIX, dir=jobs_directory()))


def job_path(name: str) -> Path:
    """The path of the record of a job, for `state`, `dump` and `job_load`.

    Raises:
        ValueError: the name has other characters than letters, digits, `_`, `.` and `-`.
    """
    if not _is_name(name):
        raise ValueError(f"{name!r} cannot name a job; use letters, digits, _, . and -")
    return jobs_directory() / name


def job_names() -> list[str]:
    """The names of all jobs of this user that have a record by name."""
    found = (path for path in jobs_directory().iterdir() if path.is_file())
    return sorted(path.name for path in found if _is_name(path.name))


def _is_name(name: str) -> bool:
    return _NAME.match(name) is not None and not name.startswith(local_workers.PREFIX)
