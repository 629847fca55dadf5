"""Workers: programs that make their host a worker, and clients that attach to workers.

Runs in: a program that makes its host a worker; a client that attaches to some.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from monarch._src.actor.checked_names import name_text
from monarch._src.actor.future import Future
from monarch._src.config import settings
from monarch._src.errors import SessionError
from monarch._src.mesh.channel_transport import check_transport
from monarch._src.mesh.client import ClientSession, current_session, lock, session
from monarch._src.mesh.host_links import GatewayAddress
from monarch._src.mesh.hosts import Attachment, Handle
from monarch._src.mesh.meshes import HostMesh
from monarch._src.net import session_directory as sessions
from monarch._src.net.hosts import keys
from monarch._src.net.interfaces import resolve
from monarch._src.net.state.access import MAKE_KEYS, TRUST_ALL, Role, fingerprint
from monarch._src.net.state.addresses import (
    Address,
    identity_in,
    is_beyond_this_host,
    parse_dialled,
    parse_listening,
)
from monarch._src.session.workers.attached_hosts import (
    PATIENCE_PART,
    AttachedHosts,
    hosts_of_session,
)
from monarch._src.session.workers.gateway_route import reached
from monarch._src.session.workers.options import (
    JOB_PREFIX,
    Report,
    WorkerOptions,
    worker_command,
)
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
            to listen at BIND while others dial DIAL. Port 0 means any free port; the program
            prints the one it got, as `monarch worker` does.
        ca: the directory with the keys of the job (`monarch keys make`), or its `job.public`.
            `"trust_all_connections"`: without keys, which is allowed on loopback only.
        private_key: the file of the worker's own key; `worker.key` beside the others if None.

    Raises:
        PermissionError: other hosts could connect, and there are no keys; or other users could
            read a key.
        OSError, ValueError, TypeError: it cannot listen there; the text says why.
        SessionError: the worker ended otherwise than by a client's `shutdown`.
    """
    run_worker_loop_until_shutdown(address=address, ca=ca, private_key=private_key)
    raise SystemExit(0)


def run_worker_loop_until_shutdown(
    *, address: str, ca: CA, private_key: Path | None = None
) -> None:
    """As `run_worker_loop_forever`, but returns when a client has shut it down."""
    worker = _Worker(address, ca, private_key)
    worker.tell_port()
    worker.wait()


def start_worker_loop_forever(
    *, address: str, ca: CA, private_key: Path | None = None
) -> Future[None]:
    """Serve this host while this program runs. Returns when the worker listens.

    The future is done when a client has shut it down, and fails if it ends otherwise. Arguments and
    errors are those of `run_worker_loop_forever`.
    """
    worker = _Worker(address, ca, private_key)
    worker.tell_port()
    return _ended(worker)


def start_worker(address: str, ca: CA, private_key: Path | None = None) -> Report:
    """As `start_worker_loop_forever`; returns where it listens, and how others reach it."""
    worker = _Worker(address, ca, private_key)
    _ended(worker)
    return worker.report


def start_local_worker() -> str:
    """Start a worker for this host alone; returns its address. Errors are those of `start_worker`.

    The address is a socket in a directory of its own, which goes when the worker ends.
    """
    directory = tempfile.mkdtemp(prefix=JOB_PREFIX, dir=sessions.base_directory())
    address = f"ipc://{directory}/worker"

    def remove() -> None:
        atexit.unregister(remove)
        shutil.rmtree(directory, ignore_errors=True)

    try:
        worker = _Worker(address, TRUST_ALL, None)
    except BaseException:
        remove()
        raise
    atexit.register(remove)  # the worker may end after this program
    _ended(worker, remove)
    return address


def _ended(worker: _Worker, clean_up: Callable[[], None] = lambda: None) -> Future[None]:
    future: Future[None] = Future.unmanaged()

    def wait() -> None:
        try:
            worker.wait()
        except SessionError as error:
            clean_up()
            future.fail(error)
        else:
            clean_up()
            future.settle(lambda: None)

    threading.Thread(target=wait, name="monarch-worker-end", daemon=True).start()
    return future


class _Worker:
    """The process of a worker: a child of this process, which ends with it."""

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
        self._has_any_port = asked.bind.transport == "tcp" and not asked.bind.port

    def tell_port(self) -> None:
        """Print where it listens, if its port is one that was free: clients need it to dial."""
        if self._has_any_port:
            sys.stdout.write(self.report.as_text())
            sys.stdout.flush()

    def wait(self) -> None:
        """Return when a client has shut it down."""
        try:
            status = self._child.wait()
        finally:  # also after an interrupt
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
            f"{what} is given as bytes: keys are read from files, and stay there; give a path "
            f"(`{MAKE_KEYS}` makes keys)"
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
    """Attach to workers: a mesh of hosts with the dim `hosts`, in the order given.

    Returns at once. `initialized` of the mesh is done when each worker has answered, and methods
    that need the hosts wait for that. A worker that starts late is waited for, for
    `attach_timeout`; so is a worker whose last client is gone, until it has noticed that.

    Args:
        ca: the directory with the keys of the job, or its `job.public`; `"trust_all_connections"`:
            without keys, for workers on loopback that were started that way.
        workers: their addresses; the DIAL part of `DIAL@BIND`. An identity in front, such as
            `service<1f0c>@tcp://host:26600`, tells them apart.
        private_key: the file of this client's key; `owner.key` beside the others if None.
        name: the name of the mesh in front ends.

    Raises:
        SessionError: this process is not a client.
        ValueError: an invalid address, no worker, or keys of another job than that of hosts which
            this client has.
        RuntimeError: `enable_transport("ipc")` was called, and a worker is not at `ipc://`.
        FileNotFoundError, PermissionError: the keys do not exist, or other users could read them.

    `initialized`, and methods that need the hosts, raise:
        HostUnreachableError: a worker cannot be reached (the text lists the attempts), or does not
            admit this process.
        SessionError: a worker belongs to another client.
        ValueError: a worker was given twice, or is a host of this client already.
    """
    return _attach(ca, workers, private_key, name, settings().attach_s)


def attached_workers(*, ca: CA, workers: Sequence[str], name: str) -> HostMesh:
    """As `attach_to_workers`, for workers that have been started. Blocks until each has answered.

    Raises as `attach_to_workers` and as `initialized` of its mesh.
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
    told = [worker.get() if isinstance(worker, Future) else worker for worker in workers]
    _check_identities(told)
    addresses = [parse_dialled(one) for one in told]
    check_transport(addresses)
    if not addresses:
        raise ValueError("workers is empty: give the address of at least one")
    if name is not None:
        name_text("a host mesh", name)
    own = _loaded(ca, private_key)
    if own is None:
        _check_local(addresses)
    with lock:
        sites = _sites(own, ca, private_key)
        sites.begin()
        asked = Attachment(_client_session().runtime, partial(sites.attach, addresses, patience_s))
    extent = Extent(("hosts",), (len(addresses),))
    return HostMesh(Region.of_extent(extent), sites=asked, name=name or "", handle=Handle())


def attach(address: str, *, ca: CA | None = None, private_key: Path | None = None) -> None:
    """Reach workers through a gateway from now on, for a client that can connect to nothing else.

    `address` is where a worker of the job listens, as this process reaches it: a login host, or a
    port of this host that is forwarded there. That worker dials all others, so addresses given to
    `attach_to_workers` afterwards are as its host sees them. Traffic is encrypted between this
    process and each worker. Any worker can be the gateway, whichever client has it, and it is no
    host of this process unless it is among the attached workers.

    Call it before `attach_to_workers`. Repeating a call has no effect; another gateway replaces it
    while this process has no workers. It holds until `shutdown_context()`; a session that is kept
    keeps its gateway too.

    Args:
        ca: the directory with the keys of the job, as for `attach_to_workers`: then this call
            checks that the gateway admits this process. If None, the first `attach_to_workers`
            does, with the keys given there.
        private_key: the file of this client's key; `owner.key` beside the others if None.

    Raises:
        HostUnreachableError: the gateway does not answer; with `ca`: it does not admit this
            process.
        SessionError: this process has workers already, by another route; or is not a client.
        ValueError, RuntimeError, PermissionError, FileNotFoundError: as `attach_to_workers`.
    """
    said = parse_dialled(address)
    check_transport([said])
    own = None if ca is None else _loaded(ca, private_key)
    if ca is not None and own is None:
        _check_local([said])
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
    sites = hosts_of_session(held)
    if sites is not None and sites.is_used:
        way = "directly" if held.via is None else f"through the gateway {held.via.said}"
        raise SessionError(
            f"attach({str(via.said)!r}) comes too late: this process has workers already, which it "
            f"reaches {way}; call it before attach_to_workers, or release them first (stop())"
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
        raise SessionError("only a client can have workers, and this is a process of a mesh")
    return held


def _sites(own: keys.Keys | None, ca: CA, private_key: Path | None) -> AttachedHosts:
    """The attached hosts of this session, with the keys of this job. Under the lock."""
    held = _client_session()
    job = None if own is None else own.allowed.job
    public = "" if own is None else own.public
    sites = hosts_of_session(held)
    wrong = sites is not None and (sites.job, sites.public) != (job, public)
    if wrong and sites is not None and not sites.is_used:
        sites.close()
        sites = held.sites = None
    if sites is None:
        private = "" if private_key is None else _path("private_key", private_key)
        sites = held.sites = AttachedHosts(held.runtime, own, [_path("ca", ca), private], held.via)
    if sites.job != job:
        raise ValueError(
            f"this process has hosts of {_job_text(sites.job)}, and these are of "
            f"{_job_text(job)}: one job at a time; attach in another process"
        )
    if sites.public != public:
        raise ValueError(
            f"this process has hosts of {_job_text(job)} with the key "
            f"{fingerprint(sites.public)}, and {fingerprint(public)} is given now: one key at "
            "a time; attach in another process, or give those hosts back first (stop())"
        )
    return sites


def has_workers(mesh: HostMesh) -> bool:
    """Whether the mesh consists of workers, all of which this process has now."""
    found = current_session()
    held = None if found is None else found.sites
    sites = mesh._sites  # pyright: ignore[reportPrivateUsage]
    return bool(sites) and held is not None and all(held.is_held(site) for site in sites)


def _job_text(job: str | None) -> str:
    return "no job (trust_all_connections)" if job is None else f"job {job}"


def _check_identities(workers: Sequence[Any]) -> None:
    """Raise ValueError if two addresses, such as `service<1f0c>@tcp://host:26600`, are of one."""
    seen: dict[str, str] = {}
    for worker in workers:
        one = identity_in(worker) if isinstance(worker, str) else ""
        if one and one in seen:
            raise ValueError(f"{seen[one]} and {worker} are the same worker; give it once")
        seen[one] = worker


def _check_local(addresses: Sequence[Address]) -> None:
    """Refuse to dial beyond this host without keys: a process there could run code here."""
    for address in addresses:
        try:
            resolved = resolve(address) if address.transport == "tcp" else []
        except OSError:
            resolved = []  # only a gateway may resolve it, so it is no loopback address
        if is_beyond_this_host(address, resolved):
            raise PermissionError(
                f"refused to dial {address} without keys: any process that answers there could run "
                f"code in this one. Make keys with `{MAKE_KEYS}`, start the worker with them, and "
                "give their directory as ca"
            )
