"""Large payloads to and from other hosts: to each host once, whole, in order, and then gone.

Both beside the links and, where that is forbidden, by them.
"""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest

from monarch._src.actor.runtime import runtime
from monarch._src.config import settings
from monarch._src.mesh.client import current_session
from monarch._src.net.state.flow_control import QUEUE
from monarch._src.payload.hosts import client as bulk
from monarch._src.payload.hosts.client import OFF
from monarch._src.payload.hosts.server import PartRequests
from monarch.actor import (
    Actor,
    BootstrapCommand,
    HostMesh,
    ProcMesh,
    SupervisionError,
    attach_to_workers,
    default_bootstrap_cmd,
    endpoint,
    shutdown_context,
    this_host,
)
from monarch.config import configured
from monarch.observe import payload_counts
from tests.conftest import Faults
from tests.integration.segments import until
from tests.workers import PATIENCE_S, TRUST_ALL, Worker, worker, workers

pytestmark = [
    pytest.mark.skipif(
        not hasattr(os, "memfd_create"), reason="segments need memfd_create, which Linux has"
    ),
    pytest.mark.slow,
]
MEBI = 1 << 20
SIZE = 40 * MEBI  # more than a host is asked for at a time


class Reader(Actor):
    """Takes large things, and passes them on."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.kept: Any = None

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def total(self, value: Any, number: int = 0) -> tuple[int, bool, str]:
        """The sum, whether it can be written to, and in which file of memory it lies."""
        self.seen.append(number)
        return int(value.sum()), bool(value.flags.writeable), file_of(value)

    @endpoint
    def digest(self, data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    @endpoint
    def echo(self, data: bytes) -> bytes:
        return data

    @endpoint
    def note(self, number: int) -> None:
        self.seen.append(number)

    @endpoint
    def order(self) -> list[int]:
        return self.seen

    @endpoint
    def make(self, size: int) -> Any:
        return numbers(size)

    @endpoint
    def spread(self, others: Reader, size: int) -> tuple[list[int], int]:
        """Send that much to others: what they say of it, and how much of it other hosts fetched."""
        before = payload_counts()
        answers = others.total.call(numbers(size)).get(timeout=PATIENCE_S)
        after = payload_counts()
        bulk, of_all = (
            after.bulk_bytes - before.bulk_bytes,
            after.served_bytes - before.served_bytes,
        )
        assert bulk == (of_all if settings().rdma_allow_tcp_fallback else 0)
        return [total for total, _, _ in answers.values()], of_all

    @endpoint
    def begin(self, others: Reader, size: int) -> None:
        """Send that much to others, and wait for nothing."""
        others.total.broadcast(numbers(size))

    @endpoint
    def make_for(self, port: Any, size: int) -> None:
        """Send that much through a port."""
        port.send(numbers(size))

    @endpoint
    def idle(self) -> bool:
        return is_free()


def numbers(size: int) -> numpy.ndarray[Any, Any]:
    return numpy.arange(size // 8, dtype=numpy.int64)


def sum_of(size: int) -> int:
    count = size // 8
    return count * (count - 1) // 2


def file_of(array: Any) -> str:
    """The inode of the file that an array's memory is, if it is one of payloads."""
    at = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= at < end and "monarch-payload" in line:
            return line.split()[4]
    return ""


def segments_of(pid: int) -> int:
    """How many segments of payloads a process has open."""
    found = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += "monarch-payload" in os.readlink(fd)
        except FileNotFoundError:
            pass  # it was closed meanwhile
    return found


def is_free() -> bool:
    """Whether nobody has anything of what this process has sent, or got for itself."""
    gc.collect()
    return payload_counts().segments == 0


@pytest.fixture(scope="module", params=[True, False], ids=["beside the links", "by the links"])
def beside(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether hosts may connect beside their links."""
    patch = pytest.MonkeyPatch()
    patch.setenv("MONARCH_RDMA_ALLOW_TCP_FALLBACK", str(request.param))
    with configured(rdma_allow_tcp_fallback=request.param):
        yield request.param
    patch.undo()


@pytest.fixture(scope="module")
def two(agent_errors: object, beside: bool) -> Iterator[list[Worker]]:
    with workers(2) as found:
        yield found
        shutdown_context(reason="the workers are about to end")


@pytest.fixture(scope="module")
def hosts(two: list[Worker]) -> HostMesh:
    return attach_to_workers(ca=TRUST_ALL, workers=[one.address for one in two])


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    return hosts.spawn_procs({"gpus": 3}, name="spread")


@pytest.fixture(scope="module")
def readers(procs: ProcMesh) -> Reader:
    return procs.spawn("readers", Reader)


def test_what_goes_to_many_ranks_of_a_host_goes_there_once(readers: Reader, beside: bool) -> None:
    before = payload_counts()
    answers = readers.total.call(numbers(SIZE)).get(timeout=PATIENCE_S)
    after = payload_counts()
    assert after.served_bytes - before.served_bytes == 2 * SIZE
    assert after.bulk_bytes - before.bulk_bytes == (2 * SIZE if beside else 0)
    assert after.carried.get(OFF, 0) - before.carried.get(OFF, 0) == (0 if beside else 2)
    totals, writable, files = zip(*answers.values(), strict=True)
    assert set(totals) == {sum_of(SIZE)}
    assert all(writable)
    assert all(files), "views of a segment, and no copies"
    assert [len(set(files[:3])), len(set(files[3:]))] == [1, 1], "one segment a host"
    assert files[0] != files[3]


def test_one_rank_of_another_host_gets_it_by_the_same_way_and_answers_so(readers: Reader) -> None:
    one = readers.slice(hosts=1, gpus=1)
    before = payload_counts()
    total, writable, file = one.total.call_one(numbers(SIZE)).get(timeout=PATIENCE_S)
    assert (total, writable, bool(file)) == (sum_of(SIZE), True, True)
    assert payload_counts().served_bytes - before.served_bytes == SIZE
    made = one.make.call_one(SIZE).get(timeout=PATIENCE_S)
    assert int(made.sum()) == sum_of(SIZE)
    assert file_of(made)
    assert payload_counts().received == before.received + 1


def test_bytes_for_other_hosts_alone_leave_from_where_they_are(readers: Reader) -> None:
    data = os.urandom(SIZE)
    references = sys.getrefcount(data)
    before = payload_counts()
    digests = readers.digest.call(data).get(timeout=PATIENCE_S).values()
    assert set(digests) == {hashlib.sha256(data).hexdigest()}
    one = readers.slice(hosts=1, gpus=1)
    assert one.echo.call_one(data).get(timeout=PATIENCE_S) == data
    after = payload_counts()
    assert after.served_bytes - before.served_bytes == 3 * SIZE
    assert after.placed == before.placed
    until(lambda: sys.getrefcount(data) == references, "what was sent is kept")


def test_what_has_no_large_payload_does_not_wait_for_those_that_have(
    readers: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = readers.slice(hosts=1, gpus=0), readers.slice(hosts=1, gpus=1)
    one.total.call_one(numbers(SIZE)).get(timeout=PATIENCE_S)
    rooms, waits = runtime().node.send_limits, [QUEUE]
    monkeypatch.setattr(rooms, "waits", lambda _site: waits[0])
    totals: list[int] = []

    def send() -> None:
        totals.append(one.total.call_one(numbers(SIZE)).get(timeout=PATIENCE_S)[0])

    sending = threading.Thread(target=send)
    sending.start()
    until(lambda: bool(rooms._waiting), "a large one does not wait for room")  # pyright: ignore[reportPrivateUsage]
    assert other.pid.call_one().get(timeout=PATIENCE_S) > 0
    readers.note.broadcast(1)
    assert len(readers.pid.call().get(timeout=PATIENCE_S)) == 6
    assert not totals
    waits[0] = 0
    for site in list(rooms._waiting):  # pyright: ignore[reportPrivateUsage]
        rooms.released(site)
    sending.join()
    assert totals == [sum_of(SIZE)]


def test_from_host_to_host_and_to_the_client_it_goes_once_as_well(readers: Reader) -> None:
    here = this_host().spawn_procs({"gpus": 2}, name="here")
    local = here.spawn("local", Reader)
    sender, others = readers.slice(hosts=0, gpus=0), readers.slice(hosts=1)
    expected = sum_of(SIZE)
    assert sender.spread.call_one(others, SIZE).get(timeout=PATIENCE_S) == ([expected] * 3, SIZE)
    both = readers.slice(gpus=slice(1, 3))  # ranks of its own host, and of the other
    assert sender.spread.call_one(both, SIZE).get(timeout=PATIENCE_S) == ([expected] * 4, SIZE)
    assert sender.spread.call_one(local, SIZE).get(timeout=PATIENCE_S) == ([expected] * 2, SIZE)
    one = local.slice(gpus=0)
    assert one.spread.call_one(readers, SIZE).get(timeout=PATIENCE_S) == ([expected] * 6, 2 * SIZE)
    here.stop().get(timeout=PATIENCE_S)


def test_messages_keep_their_order_around_large_ones(procs: ProcMesh) -> None:
    readers = procs.spawn("in order", Reader)
    one = readers.slice(hosts=0, gpus=0)
    for number in range(0, 30, 3):
        readers.total.broadcast(numbers(SIZE if number % 2 else MEBI), number)
        one.total.broadcast(numbers(MEBI), number + 1)
        one.note.broadcast(number + 2)
    assert one.order.call_one().get(timeout=PATIENCE_S) == list(range(30))
    expected = list(range(0, 30, 3))
    others = readers.slice(hosts=1).order.call().get(timeout=PATIENCE_S)
    assert all(order == expected for order in others.values())


@pytest.mark.skipif(os.getuid() != 0, reason="only root may make a PID namespace")
def test_who_can_map_no_segment_gets_the_bytes_of_the_gateway_in_order(hosts: HostMesh) -> None:
    python = default_bootstrap_cmd()
    unshared = ["--pid", "--fork", "--mount-proc", python.program, *python.args]
    command = BootstrapCommand(shutil.which("unshare") or "unshare", args=unshared)
    there = hosts.slice(hosts=1).spawn_procs({"gpus": 2}, bootstrap_command=command, name="apart")
    readers = there.spawn("apart", Reader)
    one = readers.slice(gpus=0)
    for number in range(0, 12, 4):
        one.total.broadcast(numbers(MEBI), number)
        readers.note.broadcast(number + 1)
        readers.total.broadcast(numbers(MEBI), number + 2)
        one.note.broadcast(number + 3)
    assert one.order.call_one().get(timeout=PATIENCE_S) == list(range(12))
    answers = readers.total.call(numbers(SIZE)).get(timeout=PATIENCE_S)
    assert {(total, file) for total, _, file in answers.values()} == {(sum_of(SIZE), "")}
    assert int(one.make.call_one(SIZE).get(timeout=PATIENCE_S).sum()) == sum_of(SIZE)
    there.stop().get(timeout=PATIENCE_S)


class Halted:
    """Has a thread that moves pieces in this process stop before one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, of: Any, method: str, pieces: int) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self._left = pieces
        move, lock = getattr(of, method), threading.Lock()

        def halting(*arguments: Any) -> Any:
            with lock:
                self._left -= 1
                is_last = self._left <= 0
            if is_last:
                self.reached.set()
                assert self.go.wait(PATIENCE_S)
            return move(*arguments)

        patch.setattr(of, method, halting)


def test_a_sender_that_dies_in_the_middle_is_told_and_the_next_one_is_fetched(
    hosts: HostMesh,
    readers: Reader,
    faults: Faults,
    beside: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not beside:
        pytest.skip("pieces that go by the link are handled on one thread")
    procs = hosts.slice(hosts=0).spawn_procs(name="doomed in the middle")
    sender = procs.spawn("sender", Reader)
    pid = sender.pid.call_one().get(timeout=PATIENCE_S)
    with monkeypatch.context() as patch:
        halted = Halted(patch, bulk._Site, "_receive", 3)  # pyright: ignore[reportPrivateUsage]
        pending = sender.make.call_one(SIZE)
        assert halted.reached.wait(PATIENCE_S)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SupervisionError):
            sender.pid.call_one().get(timeout=PATIENCE_S)
        halted.go.set()
        with pytest.raises(SupervisionError):
            pending.get(timeout=PATIENCE_S)
    made = readers.slice(hosts=0, gpus=0).make.call_one(SIZE).get(timeout=PATIENCE_S)
    assert int(made.sum()) == sum_of(SIZE)
    del made
    until(is_free, "what was fetched of it is given up")
    assert faults.take()


def test_a_receiver_that_dies_in_the_middle_holds_nothing_and_others_get_it(
    hosts: HostMesh, faults: Faults, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not beside:
        pytest.skip("pieces that go by the link are handled on one thread")
    procs = hosts.spawn_procs({"gpus": 2}, name="some die in the middle")
    readers = procs.spawn("some die", Reader)
    pids = list(readers.pid.call().get(timeout=PATIENCE_S).values())
    with monkeypatch.context() as patch:
        halted = Halted(patch, PartRequests, "_serve_own", 3)
        pending = readers.slice(hosts=1).total.call(numbers(SIZE))
        assert halted.reached.wait(PATIENCE_S)
        os.kill(pids[3], signal.SIGKILL)
        with pytest.raises(SupervisionError):
            readers.slice(hosts=1, gpus=1).pid.call_one().get(timeout=PATIENCE_S)
        halted.go.set()
        with pytest.raises(SupervisionError):
            pending.get(timeout=PATIENCE_S)
    one = readers.slice(hosts=1, gpus=0)
    assert one.total.call_one(numbers(SIZE)).get(timeout=PATIENCE_S)[0] == sum_of(SIZE)
    until(is_free, "nobody has it any more")
    assert faults.take()


def test_connections_that_are_cut_under_load_lose_nothing_and_mix_nothing_up(
    hosts: HostMesh, readers: Reader, beside: bool
) -> None:
    session = current_session()
    assert session is not None
    assert session.sites is not None
    ours = session.sites._bulk  # pyright: ignore[reportAttributeAccessIssue]
    before, count = payload_counts().bulk_bytes, 6
    ended = threading.Event()

    def cut() -> None:
        while not ended.wait(0.02):
            for site in list(ours._sites.values()):  # pyright: ignore[reportPrivateUsage]
                for connection in list(site._connections):  # pyright: ignore[reportPrivateUsage]
                    connection.hang_up()
            server = ours._dialling._server  # pyright: ignore[reportPrivateUsage]
            for ends in list(server._serving.values()) if server else ():  # pyright: ignore[reportPrivateUsage]
                ends.hang_up()

    one = readers.slice(hosts=0, gpus=0)
    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        for number in range(count):
            data = os.urandom(16 * MEBI + number)
            digests = readers.digest.call(data).get(timeout=PATIENCE_S).values()
            assert set(digests) == {hashlib.sha256(data).hexdigest()}
            assert one.echo.call_one(data).get(timeout=PATIENCE_S) == data
    finally:
        ended.set()
        cutting.join()
    served = payload_counts().bulk_bytes - before
    assert served == (sum(3 * (16 * MEBI + number) for number in range(count)) if beside else 0)


def test_nothing_is_left_on_any_host(two: list[Worker], readers: Reader) -> None:
    readers.total.call(numbers(SIZE)).get(timeout=PATIENCE_S)
    until(is_free, "the client's segments are free")
    for one in two:
        until(lambda one=one: not segments_of(one.process.pid), "those of the agents are")
    until(lambda: all(readers.idle.call().get(timeout=PATIENCE_S).values()), "those of ranks are")


def test_a_sender_that_dies_before_its_payload_was_fetched_leaves_nothing(
    two: list[Worker], hosts: HostMesh, readers: Reader, faults: Faults
) -> None:
    procs = hosts.slice(hosts=0).spawn_procs(name="doomed")
    sender = procs.spawn("sender", Reader)
    pid = sender.pid.call_one().get(timeout=PATIENCE_S)
    there = psutil.Process(two[1].process.pid)
    there.suspend()  # the agent that would fetch
    try:
        sender.begin.call_one(readers.slice(hosts=1), SIZE).get(timeout=PATIENCE_S)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SupervisionError):
            sender.pid.call_one().get(timeout=PATIENCE_S)
    finally:
        there.resume()
    answers = readers.slice(hosts=1).total.call(numbers(SIZE)).get(timeout=PATIENCE_S)
    assert {total for total, _, _ in answers.values()} == {sum_of(SIZE)}
    until(lambda: not segments_of(there.pid), "what was to be fetched is given up")
    assert faults.take()


def test_a_receiver_that_dies_meanwhile_holds_nothing_and_others_get_it(
    two: list[Worker], hosts: HostMesh, faults: Faults
) -> None:
    procs = hosts.spawn_procs({"gpus": 2}, name="some die")
    readers = procs.spawn("some die", Reader)
    pids = list(readers.pid.call().get(timeout=PATIENCE_S).values())
    doomed = psutil.Process(pids[3])
    doomed.suspend()
    try:
        pending = readers.total.call(numbers(SIZE))
        others = readers.slice(gpus=0).total.call(numbers(SIZE)).get(timeout=PATIENCE_S)
    finally:
        doomed.kill()
    assert {total for total, _, _ in others.values()} == {sum_of(SIZE)}
    with pytest.raises(SupervisionError):
        pending.get(timeout=PATIENCE_S)
    for one in two:
        until(lambda one=one: not segments_of(one.process.pid), "nobody has it any more")
    until(is_free, "nor the sender")
    assert faults.take()


def test_to_a_worker_that_no_port_leads_to_payloads_go_by_the_link_and_the_reason_is_told(
    hosts: HostMesh, beside: bool, tmp_path: Path
) -> None:
    """Its client cannot be dialled either."""
    if not beside:
        pytest.skip("no other way is tried")
    with worker("--address", f"ipc://{tmp_path}/w", "--keys", TRUST_ALL) as one:
        mesh = attach_to_workers(ca=TRUST_ALL, workers=[one.address])
        readers = mesh.spawn_procs(name="behind a socket").spawn("readers", Reader)
        before = payload_counts()
        assert readers.total.call_one(numbers(SIZE)).get(timeout=PATIENCE_S)[0] == sum_of(SIZE)
        assert int(readers.make.call_one(SIZE).get(timeout=PATIENCE_S).sum()) == sum_of(SIZE)
        after = payload_counts()
        assert after.served_bytes - before.served_bytes == SIZE
        assert after.bulk_bytes == before.bulk_bytes
        (why,) = set(after.carried) - set(before.carried)
        assert why.startswith("no connection beside the link to the client: ")
        mesh.stop().get(timeout=PATIENCE_S)
