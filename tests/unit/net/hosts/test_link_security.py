"""What strangers, observers and broken peers can do at the socket of a link: be refused.

`MONARCH_MALFORMED` says how many malformed messages each test sends.
"""

from __future__ import annotations

import os
import pickle
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch._src.net.hosts import keys
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.hosts.link_ends import link_versions
from monarch._src.net.state.access import Role, fingerprint
from monarch._src.net.state.addresses import Address
from monarch._src.net.state.link_actions import Bounds, LinkUp, PeerLeft, PeerLost, PeerRefused
from monarch._src.rate_limited_log import EACH
from monarch._src.wire.frames import Payload, encode
from monarch._src.wire.link_protocol import (
    Ack,
    Bye,
    Data,
    LinkHello,
    LinkMessage,
    LinkRefused,
    Ping,
    decode_link,
    encode_link,
)
from monarch._src.wire.messages import Call, Snapshot
from tests.audits import audited
from tests.unit.net.linked import Load, Make, Party

MALFORMED = int(os.environ.get("MONARCH_MALFORMED", "1000"))
BareSocket = Callable[..., "zmq.Socket[bytes]"]


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class Guarded:
    """A worker that listens, its log, and an owner whose messages still have to arrive."""

    def __init__(self, worker: Party, owner: Party, address: Address, log: Path) -> None:
        self.worker, self.owner, self.address, self.log = worker, owner, address, log
        owner.dial(worker, address)
        owner.is_up()

    def still_works(self) -> None:
        """What comes next at the worker is from the owner, so nothing else has come."""
        self.owner.send(self.worker, b"still here")
        assert self.worker.next_message() == b"still here"

    def refused(self) -> list[dict[str, Any]]:
        lines = audited(self.log)
        return [line for line in lines if line["what"] == "refused"]

    def wait_for_refusals(self, count: int) -> None:
        while self.worker.audit.count("refused") < count:
            self.still_works()


@pytest.fixture
def guarded(make_party: Make, job_keys: Load, audit_log: Path) -> Guarded:
    worker = make_party("worker-1", job_keys(Role.WORKER), audit_log)
    owner = make_party("client-1", job_keys(Role.OWNER))
    return Guarded(worker, owner, worker.listen(), audit_log)


@pytest.fixture
def dial(bare_socket: BareSocket, guarded: Guarded) -> Callable[[Keys | None], Any]:
    """A bare socket of who has these keys, connected to the worker."""

    def connect(own: Keys | None) -> Any:
        made = bare_socket(zmq.DEALER)
        if own is not None:
            server = own.allowed.of(Role.WORKER)[0]
            made.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
            made.setsockopt(zmq.CURVE_PUBLICKEY, own.public.encode())
            made.setsockopt(zmq.CURVE_SECRETKEY, own.secret.reveal())
        made.connect(str(guarded.address))
        return made

    return connect


def hello(node: str, incarnation: int = 5) -> bytes:
    return encode_link(LinkHello(node, incarnation, link_versions(), 0, 0, 1 << 20, True))


def answer(raw: Any) -> LinkMessage:
    return decode_link(raw.recv_multipart())


def bomb_in_a_call(path: Path) -> list[Any]:
    call = Call(1, 1, "endpoint", 0, [], [])
    return encode(call, Payload(pickle.dumps(((Bomb(path),), {}), protocol=5)))


# --- strangers ------------------------------------------------------------------------------------


# What a ZeroMQ socket without security says first (ZMTP 3.0).
PLAIN_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def test_a_stranger_without_a_key_gets_no_byte_through_and_runs_nothing(
    guarded: Guarded, tmp_path: Path
) -> None:
    said = PLAIN_GREETING
    for frames in (
        [hello("client-9")],
        [encode_link(Data(0, 1, 0, 0)), *bomb_in_a_call(tmp_path / "ran")],
    ):
        said += b"".join(bytes([0, len(frame)]) + bytes(frame) for frame in frames)
    # Not by ZeroMQ, which sees that the two don't fit and may be the first to leave.
    with socket.create_connection((guarded.address.host, guarded.address.port)) as raw:
        raw.sendall(said)
        guarded.wait_for_refusals(1)
    guarded.still_works()
    assert guarded.worker.links.dropped == 0
    assert not (tmp_path / "ran").exists()
    assert "it has no CURVE" in guarded.refused()[0]["why"]


def test_a_key_of_another_job_is_refused_on_both_sides_and_written_down(
    guarded: Guarded, make_party: Make, tmp_path: Path
) -> None:
    keys.make(tmp_path / "other")
    other = keys.load(tmp_path / "other", None, Role.OWNER)
    # It knows the worker's public key, as anybody may.
    worker_key = guarded.owner.links._keys.allowed.of(Role.WORKER)  # type: ignore[union-attr]
    allowed = keys.AllowList("other", {Role.WORKER: worker_key, Role.OWNER: [other.public]})
    stranger = make_party("client-9", Keys(Role.OWNER, other.public, other.secret, allowed))
    stranger.dial(guarded.worker, guarded.address)
    notice = stranger.next_notice()
    assert isinstance(notice, PeerRefused)
    assert f"refuses the key ({fingerprint(other.public)}" in notice.why
    guarded.wait_for_refusals(1)
    line = guarded.refused()[0]
    assert line["why"] == "its key is not one of this job"
    assert line["key"] == fingerprint(other.public)
    assert line["address"] == "127.0.0.1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


def test_who_has_not_the_secret_of_a_listed_key_is_not_let_in(
    guarded: Guarded, job_keys: Load, dial: Callable[[Keys | None], Any]
) -> None:
    own = job_keys(Role.OWNER)
    _, other_secret = zmq.curve_keypair()
    raw = dial(Keys(Role.OWNER, own.public, keys.Secret(other_secret), own.allowed))
    raw.send_multipart([hello("client-9")])
    guarded.wait_for_refusals(1)
    assert "client-9" not in guarded.log.read_text()


def test_who_dials_knows_a_false_worker_and_says_nothing_to_it(
    make_party: Make, job_keys: Load, tmp_path: Path
) -> None:
    keys.make(tmp_path / "false")
    false = make_party("worker-1", keys.load(tmp_path / "false", None, Role.WORKER))
    quick = Bounds(patience_s=0.5, ping_s=0.1)
    owner = make_party("client-1", job_keys(Role.OWNER), bounds=quick, heartbeat_s=1.0)
    owner.dial(false, false.listen())
    owner.send(false, b"secret argument")
    lost = owner.next_notice()
    assert isinstance(lost, PeerLost)
    assert lost.unacknowledged == 1
    assert false.messages.empty()


@settings(
    max_examples=MALFORMED // 5, suppress_health_check=cast("list[HealthCheck]", list(HealthCheck))
)
@given(
    st.binary(min_size=1, max_size=300)
    # What looks like a greeting, and then anything; the largest size that a frame can announce.
    | st.binary(max_size=200).map(lambda rest: GREETING + rest)
    | st.binary(max_size=40).map(lambda rest: GREETING + b"\x06" + b"\xff" * 8 + rest)
)
def test_raw_bytes_at_the_port_end_their_connection_and_nothing_else(
    raw_target: Guarded, data: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", raw_target.address.port), timeout=60) as raw:
        try:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):
                pass
        except OSError:  # the other side was quicker to end it
            pass


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\0" + bytes(31)


# --- peers with a key that do wrong ---------------------------------------------------------------


@pytest.fixture
def raw_target(guarded: Guarded) -> Iterator[Guarded]:
    yield guarded
    guarded.still_works()
    assert guarded.worker.links.dropped == 0


@given(
    st.lists(
        st.lists(
            st.binary(max_size=60)
            | st.binary(max_size=60).map(b"\x4d".__add__)
            | st.sampled_from([
                encode_link(Data(1, 2, 3, 4)), encode_link(Ack(1, 2, 3)), hello(""),
                hello("worker-1\n"), hello("x" * 1000), hello("client-1"), hello("observer-1"),
                encode_link(Ping(1, 2, 3, 4)), encode_link(Bye(1, True, "")),
            ]),
            min_size=1, max_size=4,
        ),
        min_size=20, max_size=20,
    )
)  # fmt: skip
@settings(
    max_examples=max(1, MALFORMED // 20),
    suppress_health_check=cast("list[HealthCheck]", list(HealthCheck)),
)
def test_malformed_messages_of_who_has_a_key_are_dropped_and_the_others_work_on(
    fuzzed: tuple[Guarded, Any], messages: list[list[bytes]]
) -> None:
    guarded, raw = fuzzed
    for parts in messages:
        raw.send_multipart(parts)
    guarded.still_works()


@pytest.fixture
def fuzzed(
    guarded: Guarded, job_keys: Load, dial: Callable[[Keys | None], Any]
) -> Iterator[tuple[Guarded, Any]]:
    raw = dial(job_keys(Role.WORKER))
    yield guarded, raw
    guarded.wait_for_refusals(1)
    guarded.worker.audit.close()
    lines = guarded.refused()
    assert {line["key"] for line in lines} == {fingerprint(job_keys(Role.WORKER).public)}
    assert sum(line.get("count", 1) for line in lines) >= guarded.worker.links.dropped > 0


def test_nobody_takes_a_name_that_belongs_to_another_key(
    guarded: Guarded, job_keys: Load, dial: Callable[[Keys | None], Any]
) -> None:
    raw = dial(job_keys(Role.WORKER))
    raw.send_multipart([hello("client-1", 1 << 62)])
    guarded.wait_for_refusals(1)
    assert guarded.refused()[0]["why"] == "that name belongs to another key"
    guarded.still_works()


def test_who_may_not_have_its_name_hears_why(
    guarded: Guarded, make_party: Make, job_keys: Load
) -> None:
    other = make_party("client-1", job_keys(Role.WORKER))
    other.dial(guarded.worker, guarded.address)
    why = "worker-1 does not let it in: that name belongs to another key"
    assert other.next_notice() == PeerRefused(why)
    with pytest.raises(ConnectionError):
        other.send(guarded.worker, b"let me in")
    guarded.still_works()


def test_an_earlier_node_of_a_name_hears_that_another_has_it_and_takes_nothing_from_it(
    guarded: Guarded, job_keys: Load, dial: Callable[[Keys | None], Any]
) -> None:
    raw = dial(job_keys(Role.OWNER))
    raw.send_multipart([hello("client-1", 5)])
    why = "worker-1 does not let it in: a newer node has that name"
    assert answer(raw) == LinkRefused(5, why)
    guarded.worker.send(guarded.owner, b"still yours")
    assert guarded.owner.next_message() == b"still yours"
    guarded.still_works()


@pytest.mark.parametrize(
    ("incarnation", "peer"), [(-1, 0), (0, 0), (-1, (1 << 64) - 1), ((1 << 64) - 1, -1)]
)
def test_a_hello_of_no_possible_life_is_dropped(
    guarded: Guarded,
    job_keys: Load,
    dial: Callable[[Keys | None], Any],
    incarnation: int,
    peer: int,
) -> None:
    raw = dial(job_keys(Role.OWNER))
    for name in ("client-1", "observer-7", "client-7"):
        said = LinkHello(name, incarnation, link_versions(), peer, 0, 1 << 20, True)
        raw.send_multipart([encode_link(said)])
    guarded.wait_for_refusals(3)
    guarded.owner.links.hang_up(guarded.worker.name, "bye")
    guarded.worker.next_notice(PeerLeft)
    raw.send_multipart([encode_link(LinkHello("client-1", incarnation, {}, peer, 0, 0, True))])
    raw.send_multipart([hello("client-8")])
    assert isinstance(answer(raw), LinkHello), "it works on"


def test_an_observer_has_a_name_of_observers_and_others_have_none(
    guarded: Guarded, job_keys: Load, dial: Callable[[Keys | None], Any]
) -> None:
    dial(job_keys(Role.OBSERVER)).send_multipart([hello("client-7")])
    dial(job_keys(Role.OWNER)).send_multipart([hello("observer-7")])
    guarded.wait_for_refusals(2)
    lines = guarded.refused()
    assert {line["why"] for line in lines} == {"only observers have names with this prefix"}
    assert {line["role"] for line in lines} == {"observer", "owner"}


def test_an_observer_may_ask_and_what_else_it_says_is_never_handed_on(
    guarded: Guarded, job_keys: Load, dial: Callable[[Keys | None], Any], tmp_path: Path
) -> None:
    raw = dial(job_keys(Role.OBSERVER))
    raw.send_multipart([hello("observer-1")])
    greeting = answer(raw)
    assert isinstance(greeting, LinkHello)
    assert guarded.worker.next_notice() == LinkUp(False)  # the owner's
    assert guarded.worker.next_notice() == LinkUp(False)
    session = greeting.incarnation ^ 5
    for content in (bomb_in_a_call(tmp_path / "ran"), [b"garbage"], encode(Snapshot(7, []))):
        raw.send_multipart([encode_link(Data(session, 1, 0, 0)), *content])
    assert guarded.worker.next_message() == b"".join(map(bytes, encode(Snapshot(7, []))))
    whys = [line["why"] for line in guarded.refused()]
    assert whys[0] == "an observer may not send Call"
    assert len(whys) == 2
    assert not (tmp_path / "ran").exists()
    guarded.still_works()


# --- the log --------------------------------------------------------------------------------------


def test_who_links_is_written_down_with_role_key_and_address(
    guarded: Guarded, job_keys: Load
) -> None:
    guarded.still_works()
    lines = audited(guarded.log)
    assert {key: lines[0][key] for key in ("what", "role", "key", "node", "address")} == {
        "what": "linked", "role": "owner", "key": fingerprint(job_keys(Role.OWNER).public),
        "node": "client-1", "address": "127.0.0.1",
    }  # fmt: skip
    assert guarded.log.stat().st_mode & 0o777 == 0o600


def test_a_flood_is_counted_and_costs_few_lines(
    guarded: Guarded, job_keys: Load, dial: Callable[[Keys | None], Any]
) -> None:
    raw = dial(job_keys(Role.WORKER))
    before = psutil.Process().memory_info().rss
    for sent in range(0, MALFORMED, 1000):  # what nobody has taken yet waits in this process
        for _ in range(1000):
            raw.send(b"\0")
        guarded.wait_for_refusals(sent + 1000)
    assert psutil.Process().memory_info().rss - before < 64 << 20
    guarded.worker.audit.close()
    counts = [line.get("count", 1) for line in guarded.refused()]
    assert counts[-1] == MALFORMED
    assert len(counts) <= EACH + MALFORMED.bit_length()


def test_a_log_that_others_could_read_is_refused(make_party: Make, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    (tmp_path / "log").chmod(0o644)
    with pytest.raises(PermissionError, match=re.escape(f"run `chmod 600 {tmp_path / 'log'}`")):
        make_party("worker-1", None, tmp_path / "log")
