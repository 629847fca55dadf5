"""A job whose hosts are reached by ssh, with the user's own ssh program, configuration and keys.

Runs in: clients. Owns: a worker on each host, which outlives this process, and the keys made for
the job, in a directory of the user's. Secrets reach a host through the standard input of a program
there.
Invariants: until every worker has started and answered, each worker ends with the ssh connection
that started it. So the job exists as a whole or not at all, also if its client dies.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from monarch._src.config import settings
from monarch._src.errors import HostUnreachableError, JobError
from monarch._src.job.health_check import PART_OF_LIVENESS, silent
from monarch._src.job.launchers.remote import remote_shell
from monarch._src.job.launchers.remote.remote_program import KEEP, Done, EndWorker, Start, Started
from monarch._src.job.launchers.ssh.session import Conversation
from monarch._src.job.record import new_directory
from monarch._src.job.trait import JobState, JobTrait, check_names, checked_env
from monarch._src.net.hosts import keys
from monarch._src.net.interfaces import first_that_answers
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import Address, Listening, parse_address, parse_listening

START_S = 120.0  # to start a worker: its interpreter may be on a slow file system
ENDS_S = 30.0  # to end a worker
ANYWHERE = "tcp://*:0"
KILLED = "the job was killed, and not all of its hosts could be given back; kill() tries again"
T = TypeVar("T")
R = TypeVar("R")


class SSHHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host, and how it differs from the others of its job.

    Args:
        host: as `ssh` takes it: a name, an alias of its configuration, `user@name`.
        user: passed to ssh if given.
        port: passed to ssh if given.
        python: the interpreter that has monarch there; `~/` is the home of that user.
        env: added to the environment of the worker, and so of its ranks.
        cwd: the working directory of its ranks; if empty, the client's, if that exists there.
        address: where the worker listens, or `DIAL@BIND`; a free port of every interface if empty.
    """

    host: str
    user: str = ""
    port: int = 0
    python: str = ""
    env: dict[str, str] = {}
    cwd: str = ""
    address: str = ""

    @property
    def destination(self) -> list[str]:
        """The arguments by which ssh connects to the host."""
        user = ["-l", self.user] if self.user else []
        port = ["-p", str(self.port)] if self.port else []
        return [*user, *port, "--", self.host]


Hosts: TypeAlias = "Sequence[str | SSHHost]"


class SSHWorker(msgspec.Struct, frozen=True):
    """A running worker. `address` is where this job dials it; its host reported the rest."""

    mesh: str
    index: int
    host: SSHHost
    address: str
    pid: int
    began: str
    session: str
    directory: str

    @property
    def words(self) -> str:
        """The host for people, as in `trainers[0] (h1)`."""
        return f"{self.mesh}[{self.index}] ({self.host.host})"


class SSHJob(JobTrait):
    """A job with a worker on each of these hosts, to which ssh must connect without a prompt."""

    _meshes: dict[str, list[SSHHost]]
    _ssh: list[str]
    _workers: list[SSHWorker]
    _keys: str | None

    def __init__(
        self,
        hosts: Hosts | Mapping[str, Hosts],
        *,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        ssh: Sequence[str] = ("ssh",),
    ) -> None:
        """Args:
        hosts: the hosts of the mesh `hosts`, or of each mesh by its name; names, or `SSHHost` with
        options. python, env, cwd: for all hosts without options of their own; `env` is merged. The
        interpreter
            defaults to the path of the one that runs this.
        ssh: the program, with options, as in `("ssh", "-F", "config")`.

        Raises:
            ValueError: there is no host, or a host name that ssh would take for an option, or an
                invalid address.
            TypeError: hosts that are not a list, or one that is neither text nor an SSHHost;
                options of other types.
        """
        super().__init__()
        if isinstance(hosts, str):
            raise ValueError(f"hosts={hosts!r}: give a list, as in SSHJob([{hosts!r}])")
        meshes: Mapping[str, Hosts] = hosts if isinstance(hosts, Mapping) else {"hosts": hosts}
        check_names(meshes, "an SSHJob")
        env = checked_env(env)
        self._meshes = {}
        for name, given in meshes.items():
            if isinstance(given, str) or not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"hosts of {name} are {given!r}: give a list, as in ['h1', 'h2']")
            self._meshes[name] = [_with_defaults(one, python, env, cwd) for one in given]
            if not self._meshes[name]:
                raise ValueError(f"{name} has no host; give at least one")
        if isinstance(ssh, str):
            raise TypeError(f"ssh={ssh!r}: give a list, as in {shlex.split(ssh)!r}")
        self._ssh = list(ssh)
        if not self._ssh:
            raise ValueError("ssh is empty: give the program, as in ('ssh',)")
        self._workers = []
        self._keys = None

    @property
    def hosts(self) -> list[str]:
        """The names of its hosts for ssh, mesh by mesh."""
        return [one.host for given in self._meshes.values() for one in given]

    @property
    def pids(self) -> list[tuple[str, int]]:
        """Its workers, by host and pid there, mesh by mesh; empty before it is applied."""
        return [(one.host.host, one.pid) for one in self._running_job()._workers]

    def places(self) -> list[tuple[str, str]]:
        return [
            (f"{one.mesh}[{one.index}]", f"process {one.pid} on {one.host.host}, at {one.address}")
            for one in self._running_job()._workers
        ]

    def can_run(self, spec: JobTrait) -> bool:
        return (
            isinstance(spec, SSHJob)
            and (spec._meshes, spec._ssh) == (self._meshes, self._ssh)
            and not self._silent()
        )

    # --- reserving --------------------------------------------------------------------------------

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise JobError("an SSHJob runs no script as its client; run it yourself")
        self._keys = str(new_directory() / "keys")
        try:
            keys.make(self._keys)
            self._start_all()
        except BaseException:
            self._workers = []  # none was kept, or all were ended, or the error names those left
            self._forget_keys()
            raise

    def _start_all(self) -> None:
        every = [
            (name, index, host)
            for name, hosts in self._meshes.items()
            for index, host in enumerate(hosts)
        ]
        with self._conversations([host for _, _, host in every], "start") as talks:
            until = time.monotonic() + START_S
            self._send_starts(talks, [host for _, _, host in every])
            _each(talks, lambda talk: talk.check_interpreter(until))
            started = _each(talks, lambda talk: talk.answer(Started, until))
            addresses = self._reach_all([host for _, _, host in every], started)
            self._workers = [
                SSHWorker(*one, str(at), said.pid, said.began, said.session, said.directory)
                for one, said, at in zip(every, started, addresses, strict=True)
            ]
            lost = self._silent()
            if lost:
                raise JobError(_listed(lost))
            for talk in talks:
                talk.send(KEEP)
            try:
                until = time.monotonic() + START_S
                _each(talks, lambda talk: talk.answer(Done, until))
            except BaseException:
                self._end_workers()  # some may have been kept already
                raise

    def _send_starts(self, talks: Sequence[Conversation], hosts: Sequence[SSHHost]) -> None:
        assert self._keys is not None
        own = {name: text.reveal().decode() for name, text in keys.for_a_worker(self._keys).items()}
        for talk, host in zip(talks, hosts, strict=True):
            asked = Start(host.address or ANYWHERE, own, host.cwd)
            talk.send(msgspec.json.encode(asked) + b"\n")

    def _reach_all(self, hosts: Sequence[SSHHost], started: Sequence[Started]) -> list[Address]:
        """The address by which this client reaches each worker. Tries all of them in parallel."""
        found: dict[int, Address | Exception] = {}

        def reach(number: int) -> None:
            try:
                found[number] = self._reached(hosts[number], started[number])
            except Exception as error:  # raised below, on the thread that waits
                found[number] = error

        threads = [
            threading.Thread(target=reach, args=(number,), daemon=True)
            for number in range(len(hosts))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return _each(range(len(hosts)), lambda number: _raised(found[number]))

    def _reached(self, host: SSHHost, started: Started) -> Address:
        """The address by which this client reaches a worker: that of ssh, or a reported one."""
        dial = parse_listening(host.address or ANYWHERE).dial
        if dial is None:
            told = [parse_address(text) for text in started.others]
            told = [Address("tcp", self._host_name(host), started.port), *told]
        else:
            told = [dial if dial.port else dial.with_port(started.port)]
        try:
            who = f"the worker that was started on {host.host}"
            return first_that_answers(who, told, settings().liveness / PART_OF_LIVENESS)
        except HostUnreachableError as error:
            raise JobError(
                f"{error}\nopen its ports to this host and to the other hosts, or choose by "
                "address= where it listens"
            ) from None

    def _host_name(self, host: SSHHost) -> str:
        """The host name that ssh resolves an alias to."""
        asked = subprocess.run(
            [*self._ssh, "-G", *host.destination],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        for line in asked.stdout.splitlines():
            key, _, value = line.partition(" ")
            if key == "hostname":
                return value
        return host.host.rpartition("@")[2]

    # --- using ------------------------------------------------------------------------------------

    def _silent(self) -> list[str]:
        """The workers that do not answer to this job, with the reason, a text for each."""
        if self._keys is None:
            return [KILLED]
        try:
            own = keys.load(self._keys, None, Role.OWNER)
        except (OSError, ValueError) as error:
            return [f"its keys cannot be read: {error}"]
        addresses = [parse_address(one.address) for one in self._workers]
        found = silent(addresses, own, settings().liveness / PART_OF_LIVENESS)
        return [f"{self._workers[number].words}: {why}" for number, why in sorted(found.items())]

    def _state(self) -> JobState:
        if self._keys is None:
            raise JobError(KILLED)
        return self._attached_to(self._keys, {
            name: [one.address for one in self._workers if one.mesh == name]
            for name in self._meshes
        })  # fmt: skip

    # --- giving back ------------------------------------------------------------------------------

    def _kill(self) -> None:
        self._forget_keys()  # ending workers takes no keys
        self._end_workers()

    def _end_workers(self) -> None:
        """End every worker. JobError names those that remain, which stay in the record."""
        ending = self._workers
        problems: list[str] = []
        left: list[SSHWorker] = []
        with self._conversations([one.host for one in ending], "end") as talks:
            for talk, one in zip(talks, ending, strict=True):
                asked = EndWorker(one.pid, one.began, one.session, one.directory)
                talk.send(msgspec.json.encode(asked) + b"\n")
            until = time.monotonic() + START_S
            for talk, one in zip(talks, ending, strict=True):
                try:
                    talk.check_interpreter(until)
                    talk.answer(Done, until)
                except JobError as error:
                    problems.append(f"{one.words}, pid {one.pid}: {error}")
                    left.append(one)
        self._workers = left
        if problems:
            raise JobError(
                f"{len(problems)} of {len(ending)} workers could not be ended: "
                f"{_listed(problems)}\nkill() tries again; a worker whose host is gone has ended "
                "with it"
            )

    def _forget_keys(self) -> None:
        made, self._keys = self._keys, None
        if made is not None:
            shutil.rmtree(Path(made).parent, ignore_errors=True)

    @contextlib.contextmanager
    def _conversations(self, hosts: Sequence[SSHHost], call: str) -> Generator[list[Conversation]]:
        """A conversation with each host, all opened together; closed and waited for on exit."""
        talks: list[Conversation] = []
        connect_s = settings().liveness / PART_OF_LIVENESS
        try:
            for host in hosts:
                talk = Conversation(self._ssh, host.destination, host.host, host.python, connect_s)
                talks.append(talk)
                talk.send(remote_shell.lines(call, host.env, host.cwd if call == "start" else ""))
            yield talks
        finally:
            for talk in talks:
                talk.hang_up()
            until = time.monotonic() + ENDS_S
            for talk in talks:
                talk.end(until)


def _with_defaults(given: str | SSHHost, python: str, env: dict[str, str], cwd: str) -> SSHHost:
    if not isinstance(given, (str, SSHHost)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{given!r} is no host: give its name, or an SSHHost")
    host = SSHHost(host=given) if isinstance(given, str) else given
    host = msgspec.structs.replace(
        host, python=host.python or python, env={**env, **checked_env(host.env)},
        cwd=host.cwd or cwd,
    )  # fmt: skip
    try:
        host = msgspec.convert(msgspec.to_builtins(host), SSHHost)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{host!r} is no host: {error}") from None
    if not host.host or host.host.startswith("-"):
        raise ValueError(f"{host.host!r} is no host: ssh would take it for an option")
    if host.address:
        listening: Listening = parse_listening(host.address)
        if listening.bind.transport != "tcp":
            raise ValueError(
                f"{host.host} is to listen at {host.address}, which no other host can dial"
            )
    return host


def _raised(found: Address | Exception) -> Address:
    if isinstance(found, Exception):
        raise found
    return found


def _each(items: Iterable[T], do: Callable[[T], R]) -> list[R]:
    """Apply a function to each item.

    Raises:
        JobError: it raised JobError for some items; the text has all of them.
    """
    found: list[R] = []
    problems: list[str] = []
    for item in items:
        try:
            found.append(do(item))
        except JobError as error:
            problems.append(str(error))
    if problems:
        raise JobError(_listed(problems))
    return found


def _listed(problems: Sequence[str]) -> str:
    """Problems of several hosts as one text, without repetitions."""
    once = list(dict.fromkeys(problems))
    return once[0] if len(once) == 1 else "".join(f"\n- {one}" for one in once)
