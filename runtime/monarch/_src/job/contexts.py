"""Contexts: several jobs of one directory, each under a name, of which one is current.

Runs in: any process. Owns: `.monarch` in the working directory:

    .monarch/NAME/spec            the name of the job object, such as `jobs.training`
    .monarch/NAME/state.pkl       the record of the job, while it has hosts
    .monarch/job_state.pkl        a symbolic link to the record of the current context

A program that calls `job.state()` without a path uses the current context, since its record is
`.monarch/job_state.pkl`. Without that link, the context `default` is current. A file there, which
an earlier `job.state()` has written, becomes the record of `default`.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from monarch._src.errors import JobError
from monarch._src.job.trait import DEFAULT_JOB_PATH, JobTrait, job_load

DEFAULT = "default"
_STATE, _SPEC = "state.pkl", "spec"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_RESERVED = ("logs", Path(DEFAULT_JOB_PATH).name)  # other names in that directory


class Contexts:
    """The contexts of a directory."""

    def __init__(self, root: Path | None = None) -> None:
        """`root`: the directory of the contexts; `.monarch` in the working directory if None."""
        self._link = (Path(DEFAULT_JOB_PATH).parent if root is None else root) / _RESERVED[1]
        self._root = self._link.parent

    def current(self) -> str:
        """The name of the current context.

        Raises:
            ValueError: the link leads elsewhere.
        """
        if not self._link.is_symlink():
            return DEFAULT
        target = Path(os.readlink(self._link))
        if len(target.parts) != 2 or target.name != _STATE or not _is_name(target.parts[0]):
            raise ValueError(
                f"{self._link} leads to {target}, which is no context; remove it, and "
                "`monarch context use NAME` makes it anew"
            )
        return target.parts[0]

    def names(self) -> list[str]:
        """The names of all contexts, sorted; `default` always exists."""
        inside = self._root.iterdir() if self._root.is_dir() else ()
        found = {one.name for one in inside if one.is_dir() and _is_name(one.name)}
        return sorted({*found, DEFAULT, self.current()})

    def exists(self, name: str) -> bool:
        """Whether a context has that name."""
        return _is_name(name) and (
            name in (DEFAULT, self.current()) or (self._root / name).is_dir()
        )

    def create(self, name: str) -> None:
        """Make a context.

        Raises:
            ValueError: the context exists, or the text is no name.
        """
        if not _is_name(name):
            raise ValueError(
                f"{name!r} cannot name a context; use letters, digits, _, . and -, and none of "
                f"{', '.join(_RESERVED)}"
            )
        if self.exists(name):
            raise ValueError(f"the context {name} exists; `monarch context use {name}` chooses it")
        (self._root / name).mkdir(parents=True)

    def use(self, name: str) -> None:
        """Make a context the current one.

        Raises:
            ValueError: no context has that name.
        """
        self._check(name)
        self._root.mkdir(exist_ok=True)
        self._adopt_record()
        (self._root / name).mkdir(exist_ok=True)
        new = self._link.with_name(f".{self._link.name}-{os.getpid()}")
        new.symlink_to(Path(name, _STATE))
        os.replace(new, self._link)

    def remove(self, name: str) -> None:
        """Remove a context; of `default`, only its files.

        Raises:
            ValueError: no context has that name, it is the current one, or its job has hosts.
        """
        self._check(name)
        if name == self.current():
            raise ValueError(f"{name} is the current context; use another one first")
        if self.has_hosts(name):
            raise ValueError(
                f"the job of the context {name} has hosts; `monarch kill --context {name}` "
                "releases them"
            )
        shutil.rmtree(self._root / name, ignore_errors=not (self._root / name).exists())

    def record(self, name: str) -> Path:
        """The path of the record of a context's job, which need not exist.

        Raises:
            ValueError: no context has that name.
        """
        self._check(name)
        if name == DEFAULT and not self._link.is_symlink():
            return self._link
        return self._root / name / _STATE

    def has_hosts(self, name: str) -> bool:
        """Whether the job of a context has hosts, by its record; True if that cannot be read."""
        try:
            return job_load(self.record(name)).active
        except FileNotFoundError:
            return False
        except (JobError, OSError):
            return True

    def spec(self, name: str) -> str | None:
        """The name of a context's job object; None if `monarch apply` got no such name."""
        self._check(name)
        try:
            return (self._root / name / _SPEC).read_text().strip()
        except FileNotFoundError:
            return None

    def save_spec(self, name: str, spec: str) -> None:
        """Write the name of a context's job object."""
        self._check(name)
        directory = self._root / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _SPEC).write_text(f"{spec}\n")

    def _check(self, name: str) -> None:
        if not self.exists(name):
            raise ValueError(f"there is no context {name}; there are {', '.join(self.names())}")

    def _adopt_record(self) -> None:
        """Make a record that no context has that of `default`."""
        if self._link.is_symlink() or not self._link.exists():
            return
        (self._root / DEFAULT).mkdir(exist_ok=True)
        os.replace(self._link, self._root / DEFAULT / _STATE)


def load_current_job() -> JobTrait:
    """The job of the current context of this directory, reserved by `monarch apply`.

    Its record is `.monarch/job_state.pkl`, which a program's `job.state()` also writes.

    Raises:
        FileNotFoundError: the context has no job. JobError: as `job_load`.
    """
    try:
        return job_load(DEFAULT_JOB_PATH)
    except FileNotFoundError:
        name = Contexts().current()
        raise FileNotFoundError(
            f"the context {name} of {os.getcwd()} has no job; `monarch apply MODULE.JOB`, or "
            "job.state() in a program, reserves one"
        ) from None


def set_current_job(job: JobTrait) -> None:
    """Make a job that of the current context, for `load_current_job`, `monarch exec` and others.

    Raises:
        JobError: another job of that context has hosts; end it first. TypeError: as `dump`.
    """
    name = Contexts().current()
    try:
        before = job_load(DEFAULT_JOB_PATH)
    except (FileNotFoundError, JobError):
        before = None
    if before is not None and before.active and before.apply_id != job.apply_id:
        raise JobError(
            f"the context {name} has another job, with hosts: {before!r}; `monarch kill` releases "
            "them"
        )
    job.dump(DEFAULT_JOB_PATH)


def _is_name(name: str) -> bool:
    return _NAME.match(name) is not None and name not in _RESERVED
