"""Each socket that listens, in a real process: what nobody should say is refused and costs nothing.

`MONARCH_FUZZ` says how many frames each gets, `MONARCH_FUZZ_SEED` which.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from monarch._src.mesh.client import current_session
from monarch._src.net.hosts import keys
from monarch._src.net.state.access import Role
from monarch._src.net.state.addresses import parse_address
from monarch._src.net.streams import protocol as tcp
from monarch._src.net.streams.sockets import ServerAddress, dial
from monarch._src.payload.hosts import client
from monarch._src.payload.pieces import Wanted
from monarch._src.wire.frames import FrameError, Payload, encode
from monarch._src.wire.ids import AGENT
from monarch._src.wire.link_protocol import LinkHello, decode_link, encode_link
from monarch._src.wire.messages import Call, ReadMetrics, Relay, Reply
from monarch._src.wire.stream import pack
from monarch.actor import Actor, ProcMesh, attach_to_workers, endpoint, shutdown_context
from monarch.rdma import RDMABuffer
from tests.fuzz.listeners import (
    AuditLog,
    InHost,
    Linked,
    connected,
    observe,
    raw,
    told,
)
from tests.fuzz.mutating import Seeded, data, one_of
from tests.fuzz.parsers import (
    link_frames,
    message_frames,
    streams,
    valid_link_frames,
    valid_messages,
)
from tests.runtime_logs import RuntimeErrors
from tests.untrusted_peers import Bomb, linked
from tests.workers import worker

pytestmark = pytest.mark.slow

FRAMES = int(os.environ.get("MONARCH_FUZZ", "2000"))
SEED = int(os.environ.get("MONARCH_FUZZ_SEED", "0"))
WARM_UP = FRAMES // 5
GROWN = 24 << 20  # bytes, of memory that allocators keep
PATIENCE_S = 90.0
GREETED = 20  # bytes that the data port says to whoever connects
AT_ONCE = 500
# Of connections, which take longest; each carries several frames.
EACH = 10
SILENT = 200  # connections that stay, and say nothing, or not all
# Two frames, of which the second does not come.
BEGUN = struct.pack(">IQQ", 1 << 31 | 2, 1, 1 << 16) + b"x"


def size_of(pid: int) -> int:
    return psutil.Process(pid).memory_info().rss


@pytest.fixture
def bomb(tmp_path: Path) -> Iterator[Payload]:
    yield Payload(pickle.dumps(((Bomb(tmp_path / "ran"),), {}), protocol=5))
    assert not (tmp_path / "ran").exists()


class Target(Actor):
    """Lives in a process that listens; has memory that others may read."""

    def __init__(self) -> None:
        self.kept = bytes(range(256)) * 16
        self.buffer: RDMABuffer | None = None

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def large(self) -> bytes:
        return self.kept * 64

    @endpoint
    def serve(self) -> tuple[ServerAddress, bytes, int, bytes]:
        """Where its memory is served over TCP, and what a request has to hold."""
        from monarch._src.actor.runtime import runtime
        from monarch._src.rdma.plane import plane_of

        self.buffer = RDMABuffer(memoryview(self.kept))
        plane, handle = plane_of(runtime()), self.buffer._handle
        return (
            plane.dialling.serve(runtime().name),
            handle.owner.incarnation,
            handle.slot,
            handle.key,
        )


# --- on one host ----------------------------------------------------------------------------------


def named_on_stream(name: str) -> bytes:
    """How a pipe begins."""
    return b"".join(pack([name.encode()]))


@pytest.mark.parametrize("node", ["the agent", "a proc", "the client"])
def test_who_has_not_said_hello_says_nothing_on_this_host(
    spawn_procs: Callable[..., ProcMesh],
    bomb: Payload,
    node: str,
    runtime_errors: RuntimeErrors,
    agent_errors: Callable[[], list[str]],
) -> None:
    procs = spawn_procs(name="fuzzed")
    target = procs.spawn("target", Target)
    pid = target.pid.call_one().get()
    session = current_session()
    assert session is not None
    name, process = {
        "the agent": (AGENT, session.agent_pid),
        "a proc": (f"{procs.uid}.0", pid),
        "the client": (session.runtime.name, os.getpid()),
    }[node]
    silent = [connected(session.directory, name) for _ in range(SILENT)]
    for number, connection in enumerate(silent):
        named = named_on_stream(f"silent-{number}")
        connection.sendall([b"", named, named + BEGUN, BEGUN][number % 4])
    stranger = InHost(session.directory, name, "stranger")
    source = Seeded(SEED)
    mutated, streamed = message_frames(valid_messages()), streams(valid_messages())
    dripping = connected(session.directory, name)
    drops = itertools.cycle(b"".join(pack(valid_messages()[0])))
    dripping.sendall(named_on_stream("drips"))
    before = 0
    try:
        for number in range(FRAMES):
            if number == WARM_UP:
                before = size_of(process)
            stranger.say(mutated(source))
            if number % EACH == 0:
                dripping.sendall(bytes([next(drops)]))
                called = [named_on_stream(f"one-{source.below(8)}")] if source.below(4) else []
                told(connected(session.directory, name), [*called, *streamed(source)])
        stranger.say([bytes(frame) for frame in encode(Call(1, 1, "pid", 0, [], []), bomb)])
        stranger.say_hello()
        # What it says next is answered behind all of that.
        if name == AGENT:
            stranger.is_answered()
        else:
            stranger.say([bytes(frame) for frame in encode(ReadMetrics(1, 0))])
            stranger.hear_of(Reply)
        assert size_of(process) - before < GROWN
    finally:
        for connection in (*silent, dripping):
            connection.close()
        stranger.close()
    assert target.pid.call_one().get() == pid
    observe(session.directory)
    said = "\n".join([*runtime_errors.take(), *agent_errors()])
    assert "Traceback" not in said, said
    errors = re.findall(r"^.*(?: ERROR |^monarch.net: ).*$", said, re.MULTILINE)
    assert all("refused" in line for line in errors), errors


# --- bulk data ------------------------------------------------------------------------------------


def test_the_data_port_hangs_up_on_who_is_no_peer_and_serves_the_others(
    spawn_procs: Callable[..., ProcMesh],
) -> None:
    target = spawn_procs(name="fuzzed").spawn("target", Target)
    pid = target.pid.call_one().get()
    place, incarnation, slot, key = target.serve.call_one().get()
    pack = tcp.REQUEST.pack
    size = 4096
    valid = [
        pack(tcp.MAGIC, what, slot, incarnation, key, size, at, 100)
        for what in (tcp.READ, tcp.WRITE, tcp.ECHO, tcp.HERE)
        for at in (0, size - 100)
    ]
    source, before = Seeded(SEED), 0
    for number in range(max(40, FRAMES // EACH)):
        if number == max(20, WARM_UP // EACH):
            before = size_of(pid)
        said = b"".join(data(source, one_of(source, valid)) for _ in range(EACH))
        if source.below(3):
            told(peer(place), [said])
        else:
            assert len(raw((place.hosts[0], place.port), said)) <= GREETED
    assert size_of(pid) - before < GROWN
    got = told(peer(place), [valid[0]])
    assert got[:8] == tcp.MAGIC + struct.pack("<I", tcp.DONE)
    assert got[-100:] == bytes(range(100)), "what is read-only was written to by nobody"
    wrong = pack(tcp.MAGIC, tcp.READ, slot, incarnation, bytes(16), size, 0, 100)
    assert told(peer(place), [wrong])[4:8] == struct.pack("<I", tcp.STALE), "a key that is no key"
    assert target.pid.call_one().get() == pid


def test_the_port_for_payloads_hangs_up_on_nonsense_and_reads_what_is_meant_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys.make(tmp_path / "job")
    job = str(tmp_path / "job")
    with worker("--address", "tcp://127.0.0.1:0", "--keys", job) as listening:
        mesh = attach_to_workers(ca=job, workers=[listening.address])
        target = mesh.spawn_procs(name="mine").spawn("target", Target)
        asked: list[tcp.PartRequest] = []
        request_for = client._request_for

        def noted(wanted: Wanted) -> tcp.PartRequest:
            asked.append(request_for(wanted))
            return asked[-1]

        monkeypatch.setattr(client, "_request_for", noted)
        kept = target.large.call_one().get(timeout=PATIENCE_S)
        session = current_session()
        assert session is not None
        assert session.sites is not None
        (site,) = session.sites.held()
        sites: Any = session.sites
        place, incarnation = sites._bulk.connector(site, time.monotonic() + PATIENCE_S)
        assert isinstance(place, ServerAddress)
        pid, source, before = listening.process.pid, Seeded(SEED), 0
        own = msgspec.structs.replace(asked[0], pid=pid)
        valid = [one.packed(incarnation) for one in (asked[0], own)]
        valid.append(tcp.REQUEST.pack(tcp.MAGIC, tcp.READ, 0, incarnation, bytes(16), 9, 0, 9))
        for number in range(max(40, FRAMES // EACH)):
            if number == max(20, WARM_UP // EACH):
                before = size_of(pid)
            said = b"".join(data(source, one_of(source, valid)) for _ in range(EACH))
            sealed = place.connect(time.monotonic() + PATIENCE_S)
            with contextlib.suppress(OSError):  # it hangs up while more is said
                sealed.send(said)
            sealed.close()
            assert len(raw((place.hosts[0], place.port), said)) <= GREETED
        assert size_of(pid) - before < GROWN
        got = target.large.call_one().get(timeout=PATIENCE_S)
        assert got == kept
        mesh.stop().get(timeout=PATIENCE_S)
        shutdown_context(reason="the worker is about to end")


def peer(place: ServerAddress) -> socket.socket:
    """A connection of who knows the secret."""
    return dial(place, time.monotonic() + PATIENCE_S)._socket


# --- between hosts --------------------------------------------------------------------------------


def test_a_worker_refuses_and_writes_down_and_serves_its_client(
    tmp_path: Path, bomb: Payload
) -> None:
    keys.make(tmp_path / "job")
    job, audit = str(tmp_path / "job"), tmp_path / "audit"
    other = keys.load(job, None, Role.WORKER)  # its key may do nothing at a host that it has not
    given = ("--address", "tcp://127.0.0.1:0", "--keys", job, "--audit", str(audit))
    links, inner = link_frames(valid_link_frames()), message_frames(valid_messages())
    source, malformed, unheard = Seeded(SEED), 0, 0
    with worker(*given) as listening:
        # The agent is the process that listens.
        pid = listening.process.pid
        dealer = Linked(listening.address, "worker-8", other)
        before = 0
        for number in range(FRAMES // 2):
            if number == WARM_UP // 2:
                before = size_of(pid)
            frames = links(source)
            try:
                said = decode_link(frames)
            except FrameError:
                malformed += 1
            else:
                if isinstance(said, LinkHello):  # or it would go by another name from now on
                    frames = [encode_link(LinkHello("observer-1", 1, {}, 0, 0, 0, True))]
                    malformed += 1
            dealer.say(frames)
            if number % AT_ONCE == 0:
                dealer.all_was_heard()
        with linked(other, "worker-9", listening.address) as caller:
            for number in range(FRAMES // 2):
                frames = inner(source)
                if number % 2:
                    relay = Relay(AGENT, caller.site, "worker-9", "")
                    frames = [bytes(f) for f in encode(relay, Payload(frames[0], frames[1:]))]
                caller.links.send(caller.site, frames)
                unheard += 1
                if unheard % 200 == 0:
                    caller.all_was_heard()
            call = encode(Call(1, 1, "pid", 0, [], []), bomb)
            caller.links.send(caller.site, call)
            caller.all_was_heard()
        port = parse_address(listening.address).port
        doors = {found.laddr.port for found in psutil.Process(pid).net_connections("tcp")
                 if found.status == psutil.CONN_LISTEN}  # fmt: skip
        assert doors == {port}, "the worker listens nowhere else"
        for _ in range(max(20, FRAMES // 100)):
            raw(("127.0.0.1", port), source.some(300))
            raw(("127.0.0.1", port), GREETING + source.some(200))
        assert size_of(pid) - before < GROWN
        mesh = attach_to_workers(ca=job, workers=[listening.address])
        target = mesh.spawn_procs(name="mine").spawn("target", Target)
        assert target.pid.call_one().get(timeout=PATIENCE_S) > 0
        mesh.stop().get(timeout=PATIENCE_S)
        shutdown_context(reason="the worker is about to end")
        dealer.close()
    # The last counts are written at the end.
    refused = AuditLog(audit).refused()
    assert sum(refused.values()) >= malformed + unheard
    assert any("not a message of a link" in facts for facts in refused)
    assert any("of a node that does not have this host" in facts for facts in refused)


# What a ZeroMQ socket with CURVE says first.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\0" + bytes(31)


# --- the Jupyter server ---------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A Jupyter server with the extension: its port, and its pid. Its token is `secret`."""
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {
        **os.environ, "PYTHONPATH": path, "HOME": str(tmp_path),
        "JUPYTER_CONFIG_DIR": str(tmp_path), "JUPYTER_DATA_DIR": str(tmp_path),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
    }  # fmt: skip
    others = ("jupyterlab", "notebook", "notebook_shim", "jupyter_lsp", "jupyter_server_terminals")
    extensions = {**dict.fromkeys(others, False), "monarch_jupyter.server_extension": True}
    (tmp_path / "jupyter_server_config.json").write_text(
        json.dumps({"ServerApp": {"jpserver_extensions": extensions}})
    )
    process = subprocess.Popen(
        [
            sys.executable, "-m", "jupyter_server", "--allow-root", "--ip=127.0.0.1",
            "--ServerApp.port=0", "--no-browser",
            "--IdentityProvider.token=secret",
        ],
        env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    reader = threading.Thread(target=process.stderr.read)
    try:
        said = ""
        while (found := re.search(r"http://127\.0\.0\.1:(\d+)/", said)) is None:
            line = process.stderr.readline()
            assert line, said
            said += line
        reader.start()  # each refusal is a line
        port = int(found[1])
        until = time.monotonic() + PATIENCE_S
        while not asked(port, b"/api")[0] and time.monotonic() < until:
            pass  # it says where it listens before it does
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=PATIENCE_S)
        reader.join()
        process.stderr.close()


def asked(port: int, path: bytes, *headers: bytes) -> tuple[int, bytes]:
    """The status of the answer, 0 if there is none, and what comes with it."""
    lines = [b"GET " + path + b" HTTP/1.1", b"Host: 127.0.0.1", b"Connection: close", *headers]
    said = raw(("127.0.0.1", port), b"\r\n".join([*lines, b"", b""]), half_closed=False)
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0, body


def test_the_server_extension_tells_nothing_without_the_token_and_never_fails(
    server: tuple[int, int],
) -> None:
    port, pid = server
    token = b"Authorization: token secret"
    paths = [b"/monarch/sessions", b"/monarch/tutorials", b"/monarch/tutorials/01_hello_mesh"]
    for path in paths:
        status, body = asked(port, path)
        assert status == 403
        assert b"tutorials" not in body
        assert b"sessions" not in body
    source, before, seen = Seeded(SEED), 0, set[int]()
    count = max(100, FRAMES // 20)
    for number in range(count):
        if number == count // 5:
            before = size_of(pid)
        path = data(source, one_of(source, paths))
        header = data(source, token) if source.below(4) == 0 else token
        seen.add(asked(port, *(re.sub(rb"[\r\n]", b"", said) for said in (path, header)))[0])
    assert not {status for status in seen if status >= 500}, seen
    assert 404 in seen
    assert size_of(pid) - before < GROWN
    status, body = asked(port, paths[0], token)
    assert status == 200
    assert isinstance(json.loads(body)["sessions"], list)
