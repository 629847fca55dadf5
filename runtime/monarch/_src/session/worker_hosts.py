"""Workers: hosts that wait for a client, and what a client does to have them.

Runs in: a program that makes its host a worker; a client, which attaches to some.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from monarch._src.actor.checked_names import name_text
from monarch._src.actor.future import Future
from monarch._src.config import settings
from monarch._src.errors import SessionError
from monarch._src.mesh.channel_transport import check_transport
from monarch._src.mesh.client import ClientSession, current_session, lock, session
from monarch._src.mesh.host_mesh import Attachment, Handle, HostMesh
from monarch._src.net import session_directory as sessions
from monarch._src.net.hosts import keys
from monarch._src.net.interfaces import resolve
from monarch._src.net.state.access import MAKE_KEYS, TRUST_ALL, Role, fingerprint
from monarch._src.net.state.addresses import (
    Address,
    is_beyond_this_host,
    parse_dialled,
    parse_listening,
)
from monarch._src.session.attached_hosts import PATIENCE_PART, AttachedHosts
from monarch._src.session.gateway_route import GatewayAddress, reached
from monarch._src.session.worker_program import Report, WorkerOptions, worker_command
from monarch._src.shape import Extent, Region
from monarch._src.system.process import undebugged

Path: TypeAlias = "str | os.PathLike[str]"
_EXAMPLE = "tcp://host:26600"
CA: TypeAlias = "Path | Literal['trust_all_connections']"
_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (FileNotFoundError, PermissionError, ValueError, TypeError, FileExistsError)
}


# --- serving --------------------------------------------------------------------------------------


def run_worker_loop_forever(*, address: str, ca: CA, private_key: Path | None = None) -> None:
    """Serve this host until a client shuts it down; then this program ends, with status 0.

    Args:
        address: where to listen: `tcp://HOST:PORT`, `tcp://*:PORT`, `ipc://PATH`, or `DIAL@BIND`,
            to listen at BIND and have others dial DIAL. With port 0, any that is free, it prints
            the one that it got, as `monarch worker` does.
        ca: the directory with the keys of the job (`monarch keys make`), or its `job.public`.
            `"trust_all_connections"`: without keys, which only loopback allows.
        private_key: the file of the worker's own key; `worker.key` beside the others if None.

    Raises:
        PermissionError: other hosts could connect, and there are no keys; or others could read one.
        OSError, ValueError, TypeError: it cannot listen there; the text says why.
        SessionError: the worker did not end as a client's `shutdown` ends it.
    """
    run_worker_loop_until_shutdown(address=address, ca=ca, private_key=private_key)
    raise SystemExit(0)


def run_worker_loop_until_shutdown(
    *, address: str, ca: CA, private_key: Path | None = None
) -> None:
    """The same, but returns when a client has shut it down."""
    _Worker(address, ca, private_key).wait()


def start_worker_loop_forever(
    *, address: str, ca: CA, private_key: Path | None = None
) -> Future[None]:
    """Serve this host from now on, and as long as this program runs; returns when it listens.

    The future is done when a client has shut it down, and fails if it ends otherwise. Arguments and
    errors are those of `run_worker_loop_forever`.
    """
    worker = _Worker(address, ca, private_key)
    future: Future[None] = Future.unmanaged()

    def wait() -> None:
        try:
            worker.wait()
        except SessionError as error:
            future.fail(error)
        else:
            future.settle(lambda: None)

    threading.Thread(target=wait, name="waits-for-a-worker", daemon=True).start()
    return future


class _Worker:
    """The process of a worker, a child of this one that ends with it."""

    def __init__(self, address: str, ca: CA, private_key: Path | None) -> None:
        report_r, report_w = os.pipe()
        lifeline_r, self._lifeline = os.pipe()
        try:
            asked = parse_listening(address)
            options = WorkerOptions(
                str(asked), _path("ca", ca),
                None if private_key is None else _path("private_key", private_key),
                None, report_w, lifeline_r,
            )  # fmt: skip
            directory = sessions.make()
            try:
                command, env = worker_command(options, directory)
                self._child = subprocess.Popen(
                    undebugged(command), env=env, cwd="/", stdin=subprocess.DEVNULL,
                    start_new_session=True, pass_fds=(report_w, lifeline_r),
                )  # fmt: skip
            except BaseException:
                sessions.remove(directory)
                raise
        except BaseException:
            os.close(report_r)
            os.close(self._lifeline)
            raise
        finally:
            os.close(report_w)
            os.close(lifeline_r)
        with open(report_r, "rb") as reports:
            said = reports.readline()
        if not said:
            status = self._end()
            raise SessionError(f"the worker ended with status {status} before it listened")
        self.report = msgspec.json.decode(said, type=Report)
        if self.report.problem:
            self._end()
            raise _KINDS.get(self.report.kind, OSError)(self.report.problem)
        if asked.bind.transport == "tcp" and not asked.bind.port:
            # Nobody could dial it otherwise; this program is the worker, as far as others see.
            sys.stdout.write(self.report.as_text())
            sys.stdout.flush()

    def wait(self) -> None:
        """Return when a client has shut it down."""
        try:
            status = self._child.wait()
        finally:  # an interrupt too leaves nothing
            self._end()
        if status:
            raise SessionError(f"the worker (pid {self._child.pid}) ended with status {status}")

    def _end(self) -> int:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        return self._child.wait()


def _path(what: str, value: Any) -> str:
    if isinstance(value, bytes):
        raise TypeError(
            f"{what} is given as bytes: keys are read from files, and stay there; give the path "
            f"(`{MAKE_KEYS}` makes them)"
        )
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{what}={value!r}: give the path of keys, or {TRUST_ALL!r} as ca")
    text = os.fspath(value)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    if not isinstance(text, str):
        raise TypeError(f"{what}={value!r}: give a path as text")
    return text if what == "ca" and text == TRUST_ALL else os.path.abspath(os.path.expanduser(text))


# --- attaching ------------------------------------------------------------------------------------


def attach_to_workers(
    *,
    ca: CA,
    workers: Sequence[str | Future[str]],
    private_key: Path | None = None,
    name: str | None = None,
) -> HostMesh:
    """Have these workers: a mesh of hosts with the dim `hosts`, in the order given.

    Returns at once; `initialized` of the mesh is done when each of them has answered, and what
    needs them waits for that. One that starts late is waited for, for `attach_timeout`; so is one
    whose last client is gone, until that has been noticed.

    Args:
        ca: the directory with the keys of the job, or its `job.public`; `"trust_all_connections"`:
            without keys, for workers on loopback that were told the same.
        workers: their addresses; of `DIAL@BIND` the part that others dial.
        private_key: the file of the key to act with; `owner.key` beside the others if None.
        name: what front ends call the mesh.

    Raises:
        SessionError: this is no client.
        ValueError: an address that is none, no worker, or keys of another job than that of hosts
            which this client has.
        RuntimeError: `enable_transport("ipc")` was called, and one is not at `ipc://`.
        FileNotFoundError, PermissionError: there are no such keys, or others could read them.

    `initialized`, and what needs the hosts, raises:
        HostUnreachableError: one cannot be reached (the text lists what was tried), or does not let
            this process in.
        SessionError: one belongs to another client.
        ValueError: one was given twice, or is a host of this client already.
    """
    return _attach(ca, workers, private_key, name, settings().attach_s)


def attached_workers(*, ca: CA, workers: Sequence[str], name: str) -> HostMesh:
    """The same of workers that have been started: returns when each of them has answered.

    Raises as `attach_to_workers` and `initialized` of what that gives.
    """
    mesh = _attach(ca, workers, None, name, settings().liveness / PATIENCE_PART)
    _ = mesh.hosts  # waits for them
    return mesh


def _attach(
    ca: CA,
    workers: Sequence[str | Future[str]],
    private_key: Path | None,
    name: str | None,
    patience_s: float,
) -> HostMesh:
    if isinstance(workers, str) or not isinstance(workers, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"workers={workers!r}: give a list of addresses, as in [{_EXAMPLE!r}]")
    addresses = [_dialled(worker) for worker in workers]
    check_transport(addresses)
    if not addresses:
        raise ValueError("workers is empty: give the address of at least one")
    if name is not None:
        name_text("a host mesh", name)
    own = _loaded(ca, private_key)
    if own is None:
        _check_near(addresses)
    with lock:
        sites = _sites(own, ca, private_key)
        sites.begin()
        asked = Attachment(_client_session().runtime, partial(sites.attach, addresses, patience_s))
    extent = Extent(("hosts",), (len(addresses),))
    return HostMesh(Region.of_extent(extent), sites=asked, name=name or "", handle=Handle())


def attach(address: str, *, ca: CA | None = None, private_key: Path | None = None) -> None:
    """Reach workers through that one from now on: for a client that can connect to it alone.

    `address` is where a worker of the job listens, as this process reaches it: a login host, or a
    port of this host that is forwarded there. All other workers are dialled from there: addresses
    given to `attach_to_workers` after this are as that host sees them. What passes is encrypted
    between this process and each worker. It is a gateway whoever has its host, and no host of this
    process unless it is among the workers.

    Say it before `attach_to_workers`. Saying the same again is nothing; another gateway takes its
    place while this process has no workers. It holds until `shutdown_context()`; a session that is
    kept, and taken up again, takes its gateway along.

    Args:
        ca: the directory with the keys of the job, as for `attach_to_workers`: then the gateway is
            asked at once whether it lets this process in. If None it is asked by the first
            `attach_to_workers`, with the keys given there.
        private_key: the file of the key to act with; `owner.key` beside the others if None.

    Raises:
        HostUnreachableError: nobody answers there; with `ca`: it does not let this process in.
        SessionError: this process has workers already, reached in another way; or is no client.
        ValueError, RuntimeError, PermissionError, FileNotFoundError: as `attach_to_workers`.
    """
    said = _dialled(address)
    check_transport([said])
    own = None if ca is None else _loaded(ca, private_key)
    if ca is not None and own is None:
        _check_near([said])
    with lock:
        held = _client_session()
        if held.via is None or not held.via.is_at(said):
            until = time.monotonic() + settings().liveness / PATIENCE_PART
            via = GatewayAddress(said, reached(said, until, wait=True))
            if held.via is None or held.via.dialled != via.dialled:
                _go_through(held, via)
        if ca is not None:
            _sites(own, ca, private_key).try_gateway()


def _go_through(held: ClientSession, via: GatewayAddress) -> None:
    sites = held.sites
    if sites is not None and sites.is_used:
        way = "by itself" if held.via is None else f"through the gateway {held.via.said}"
        raise SessionError(
            f"attach({str(via.said)!r}) comes too late: this process has workers already, which it "
            f"reaches {way}; say it before attach_to_workers, or give them back first (stop())"
        )
    if sites is not None:
        sites.close()
        held.sites = None
    held.via = via


def _loaded(ca: CA, private_key: Path | None) -> keys.Keys | None:
    if _path("ca", ca) == TRUST_ALL:
        return None
    private = None if private_key is None else _path("private_key", private_key)
    return keys.load(_path("ca", ca), private, Role.OWNER, only=True)


def _client_session() -> ClientSession:
    held = session()
    if held.runtime.proc_ref is not None:
        raise SessionError("only a client has workers, and this is a process of a mesh")
    return held


def _sites(own: keys.Keys | None, ca: CA, private_key: Path | None) -> AttachedHosts:
    """What has the workers of this job. Under the lock."""
    held = _client_session()
    job = None if own is None else own.allowed.job
    public = "" if own is None else own.public
    wrong = held.sites is not None and (held.sites.job, held.sites.public) != (job, public)
    if wrong and held.sites is not None and not held.sites.is_used:
        held.sites.close()
        held.sites = None
    if held.sites is None:
        private = "" if private_key is None else _path("private_key", private_key)
        held.sites = AttachedHosts(held.runtime, own, [_path("ca", ca), private], held.via)
    if held.sites.job != job:
        raise ValueError(
            f"this process has hosts of {_job_text(held.sites.job)}, and these are of "
            f"{_job_text(job)}: one job at a time; attach in another process"
        )
    if held.sites.public != public:
        raise ValueError(
            f"this process has hosts of {_job_text(job)} with the key "
            f"{fingerprint(held.sites.public)}, and {fingerprint(public)} is given now: one key at "
            "a time; attach in another process, or give those hosts back first (stop())"
        )
    return held.sites


def has_workers(mesh: HostMesh) -> bool:
    """Whether these are workers, all of which this process has now."""
    found = current_session()
    held = None if found is None else found.sites
    sites = mesh._sites  # pyright: ignore[reportPrivateUsage]
    return bool(sites) and held is not None and all(held.is_held(site) for site in sites)


def _job_text(job: str | None) -> str:
    return "no job (trust_all_connections)" if job is None else f"job {job}"


def _dialled(worker: str | Future[str]) -> Address:
    text = worker.get() if isinstance(worker, Future) else worker
    return parse_dialled(text)


def _check_near(addresses: Sequence[Address]) -> None:
    """Without keys nobody is dialled beyond this host: any who answers could run code here."""
    for address in addresses:
        try:
            resolved = resolve(address) if address.transport == "tcp" else []
        except OSError:
            resolved = []  # a gateway may know it; it is no loopback address, then
        if is_beyond_this_host(address, resolved):
            raise PermissionError(
                f"refused to dial {address} without keys: whoever answers there could run code in "
                f"this process. Make keys with `{MAKE_KEYS}`, start the worker with them, and give "
                "their directory as ca"
            )
