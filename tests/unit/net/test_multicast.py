"""The same to several peers by one write: all of it arrives, once, in one order with the rest."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch._src.net import multicast
from monarch._src.net import router as router_module
from monarch._src.net.pipe import Pipe
from monarch._src.net.polling import SelectorPoll
from monarch._src.net.router import OFTEN, Router
from monarch._src.net.spinning import Spin
from monarch._src.wire.ring import LONGEST, ROOM, size_for
from monarch._src.wire.stream import pack, word
from tests.unit.net.routers import (
    PATIENCE_S,
    MakeRouter,
    MakeStranger,
    address,
    cut_off,
    received,
)
from tests.unit.net.stranger import Stranger

pytestmark = pytest.mark.skipif(
    not (sys.platform == "linux" and os.uname().machine == "x86_64"),
    reason="only there do several peers hear of one write",
)

PEERS = 5


class Circle:
    """One that sends, and those who hear it."""

    def __init__(self, make_router: MakeRouter, sockets: Path) -> None:
        self._make, self._sockets = make_router, sockets
        self.sender = make_router("sender")
        self.routes: list[bytes] = []
        self.hearers: list[Router] = []
        for number in range(PEERS):
            self.join(f"h{number}")

    def join(self, name: str) -> None:
        """Have one more peer."""
        hearer = self._make(name)
        self.hearers.append(hearer)
        hearer.connect(b">sender", address(self._sockets, "sender"), [[b"hello"]])
        assert received(self.sender) == [name.encode(), b"hello"]
        self.routes.append(name.encode())

    def to_all(self, message: bytes) -> None:
        """Send it to all of them."""
        assert not self.sender.send_all(self.routes, [message])

    def taken(self, hearer: Router) -> list[bytes]:
        """What can be received now, all of it from the sender."""
        found: list[bytes] = []
        hearer.wait(0)
        while (parts := hearer.receive()) is not None:
            assert bytes(parts[0]) == b">sender"
            found.append(bytes(parts[1]))
        return found

    def tune_in(self) -> None:
        """Send together, and do what is asked meanwhile, until all can hear one write."""
        for number in range(OFTEN):
            self.to_all(b"often %d" % number)
        for _ in range(2):
            for hearer in self.hearers:
                self.taken(hearer)
            assert not self.sender.readable()


@pytest.fixture
def circle(make_router: MakeRouter, sockets: Path) -> Circle:
    made = Circle(make_router, sockets)
    made.tune_in()
    return made


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages that are written to pipes from here on."""
    found: list[bytes] = []
    send = Pipe.send

    def noted(self: Pipe, packed: Any, messages: int = 1) -> bool:
        if messages:
            found.append(b"".join(packed)[4:])
        return send(self, packed, messages)

    monkeypatch.setattr(Pipe, "send", noted)
    return found


def test_what_is_often_sent_to_the_same_peers_is_written_once(
    circle: Circle, written: list[bytes]
) -> None:
    for number in range(3):
        circle.to_all(b"%d" % number)
    assert written == []
    for hearer in circle.hearers:
        assert circle.taken(hearer) == [b"0", b"1", b"2"]
        assert circle.taken(hearer) == []


def test_until_all_have_taken_it_messages_go_by_the_pipes(
    make_router: MakeRouter, sockets: Path, written: list[bytes]
) -> None:
    circle = Circle(make_router, sockets)
    written.clear()
    for number in range(OFTEN):
        circle.to_all(b"%d" % number)
    for hearer in circle.hearers[1:]:
        assert len(circle.taken(hearer)) == OFTEN
        assert not circle.sender.readable()
        circle.taken(hearer)
    assert not circle.sender.readable()
    circle.to_all(b"more")
    assert len(written) == PEERS * (OFTEN + 1)
    assert circle.taken(circle.hearers[0]) == [*(b"%d" % n for n in range(OFTEN)), b"more"]


def test_others_are_sent_to_by_their_pipes(circle: Circle, written: list[bytes]) -> None:
    assert not circle.sender.send_all(circle.routes[1:], [b"some"])
    assert not circle.sender.send_all(circle.routes, [b"two", b"frames"])
    circle.to_all(bytes(LONGEST + 1))
    assert len(written) == PEERS - 1 + 2 * PEERS
    assert [len(circle.taken(hearer)) for hearer in circle.hearers] == [2, 3, 3, 3, 3]


def test_somebody_unknown_is_told_of_and_the_rest_hears_it(circle: Circle) -> None:
    assert circle.sender.send_all([*circle.routes, b"nobody"], [b"x"]) == [b"nobody"]
    assert all(circle.taken(hearer) == [b"x"] for hearer in circle.hearers)


@pytest.mark.parametrize("seed", range(8))
def test_all_ways_together_keep_one_order(circle: Circle, seed: int) -> None:
    draw = random.Random(seed)
    expected: defaultdict[int, list[bytes]] = defaultdict(list)
    heard: defaultdict[int, list[bytes]] = defaultdict(list)
    for number in range(3_000):
        message = b"%d" % number + bytes(draw.choice([0, 9, 300, LONGEST, LONGEST + 9]))
        what = draw.random()
        if what < 0.6:
            circle.to_all(message)
            who = list(range(PEERS))
        elif what < 0.9:
            who = [draw.randrange(PEERS)]
            assert circle.sender.send(circle.routes[who[0]], [message])
        else:
            who = sorted(draw.sample(range(PEERS), 4))
            assert not circle.sender.send_all([circle.routes[w] for w in who], [message])
        for one in who:
            expected[one].append(message)
        if draw.random() < 0.2:
            reader = draw.randrange(PEERS - 1)  # the last one reads at the end
            heard[reader] += circle.taken(circle.hearers[reader])
    for reader, hearer in enumerate(circle.hearers):
        while len(heard[reader]) < len(expected[reader]):
            heard[reader].append(received(hearer, circle.sender)[1])
        assert heard[reader] == expected[reader]


def test_one_that_does_not_read_keeps_nobody_else_waiting(
    circle: Circle, written: list[bytes]
) -> None:
    slow, *quick = circle.hearers
    sent = 0
    while len(written) < 100:
        circle.to_all(b"%d" % sent + bytes(1_000))
        sent += 1
        for hearer in quick:
            assert len(circle.taken(hearer)) == 1
    assert sent > ROOM // 2_000
    found = [received(slow, circle.sender)[1] for _ in range(sent)]
    assert [message.rstrip(b"\0") for message in found] == [b"%d" % n for n in range(sent)]
    written.clear()
    circle.to_all(b"there is room again")
    assert written == []


def test_threads_that_send_at_once_keep_each_its_order(circle: Circle) -> None:
    rounds = 2_000
    heard: list[list[bytes]] = [[] for _ in circle.hearers]

    def sends(name: int) -> None:
        for number in range(rounds):
            message = b"%d %d" % (name, number)
            if number % 3 == name:
                for route in circle.routes:
                    assert circle.sender.send(route, [message])
            else:
                circle.to_all(message)

    def hears(reader: int) -> None:
        while len(heard[reader]) < 3 * rounds:
            heard[reader].append(received(circle.hearers[reader])[1])

    threads = [threading.Thread(target=sends, args=(name,)) for name in range(3)]
    threads += [threading.Thread(target=hears, args=(reader,)) for reader in range(PEERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # what finds no room is written by who waits
            circle.sender.readable()
            thread.join(0.01)
    for messages in heard:
        for name in range(3):
            own = [int(m.split()[1]) for m in messages if m.split()[0] == b"%d" % name]
            assert own == list(range(rounds))


def test_what_one_has_sent_before_it_ends_is_heard(circle: Circle) -> None:
    circle.to_all(b"first")
    circle.sender.send(circle.routes[1], [b"by the pipe"])
    circle.to_all(b"last")
    circle.sender.close()
    for number, hearer in enumerate(circle.hearers):
        between = [b"by the pipe"] if number == 1 else []
        assert circle.taken(hearer) == [b"first", *between, b"last"]
        while hearer.reachable(b">sender"):
            assert circle.taken(hearer) == []


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_who_stays_hears_all_and_is_sent_to_together_again(
    make_router: MakeRouter, sockets: Path, written: list[bytes]
) -> None:
    circle = Circle(make_router, sockets)
    before = open_descriptors()
    circle.tune_in()
    mapped, wakes = 1, 1  # a mapping of Python's has a descriptor of its own
    assert open_descriptors() == before + (1 + mapped + wakes) + PEERS * (mapped + wakes)
    circle.to_all(b"to all")
    circle.hearers.pop(2).close()
    while circle.sender.reachable(b"h2"):
        circle.sender.wait(PATIENCE_S)
    assert circle.sender.send_all(circle.routes, [b"to those who stay"]) == [b"h2"]
    del circle.routes[2]
    for hearer in circle.hearers:
        assert circle.taken(hearer) == [b"to all", b"to those who stay"]
    assert open_descriptors() == before - 5, "a listener, a poll, a wake-up, a pipe's two ends"
    circle.join("new")
    circle.tune_in()
    written.clear()
    circle.to_all(b"to all of these")
    assert written == []
    for hearer in circle.hearers:
        assert circle.taken(hearer) == [b"to all of these"]


def test_a_set_of_which_one_belongs_to_another_goes_by_the_pipes(
    circle: Circle, written: list[bytes]
) -> None:
    for _ in range(2 * OFTEN):
        assert not circle.sender.send_all(circle.routes[:4], [b"some"])
    assert len(written) == 4 * 2 * OFTEN
    circle.to_all(b"all")
    assert len(written) == 4 * 2 * OFTEN
    assert circle.taken(circle.hearers[0]) == [*2 * OFTEN * [b"some"], b"all"]


def test_a_set_gives_way_to_a_larger_one_and_to_no_other(
    make_router: MakeRouter, sockets: Path, written: list[bytes]
) -> None:
    circle = Circle(make_router, sockets)
    every_one = circle.routes
    circle.routes = every_one[:4]
    circle.tune_in()
    before = open_descriptors()
    circle.to_all(b"some")
    for _ in range(OFTEN):
        assert not circle.sender.send_all(every_one[1:], [b"as many"])
    written.clear()
    circle.to_all(b"still")
    assert written == []
    circle.routes = every_one
    circle.to_all(b"all")
    assert circle.taken(circle.hearers[0]) == [b"some", b"still", b"all"]
    many = OFTEN * [b"as many"]
    assert circle.taken(circle.hearers[3]) == [b"some", *many, b"still", b"all"]
    assert circle.taken(circle.hearers[4]) == [*many, b"all"]
    circle.tune_in()
    assert open_descriptors() == before + 2
    written.clear()
    for number in range(2 * OFTEN):
        assert not circle.sender.send_all(every_one[:4], [b"some again"])
        circle.to_all(b"%d" % number)
    assert len(written) == 4 * 2 * OFTEN
    each = [[b"some again", b"%d" % number] for number in range(2 * OFTEN)]
    assert circle.taken(circle.hearers[0]) == [one for both in each for one in both]
    assert circle.taken(circle.hearers[4]) == [b"%d" % number for number in range(2 * OFTEN)]


def test_a_set_that_has_not_been_taken_by_all_gives_way_to_no_other(
    make_router: MakeRouter, sockets: Path, written: list[bytes]
) -> None:
    circle = Circle(make_router, sockets)
    for number in range(OFTEN):
        assert not circle.sender.send_all(circle.routes[:4], [b"%d" % number])
    for number in range(OFTEN):
        circle.to_all(b"all %d" % number)
    for hearer in circle.hearers * 2:
        circle.taken(hearer)
        assert not circle.sender.readable()
    written.clear()
    assert not circle.sender.send_all(circle.routes[:4], [b"some"])
    assert written == []
    circle.to_all(b"all")
    assert len(written) == PEERS
    assert circle.taken(circle.hearers[0]) == [b"some", b"all"]


# --- those who cannot -----------------------------------------------------------------------------


def test_one_that_waits_by_a_selector_refuses_and_gets_all_by_its_pipe(
    make_router: MakeRouter, sockets: Path, written: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    circle = Circle(make_router, sockets)
    monkeypatch.setattr(router_module, "new_poll", SelectorPoll)
    circle.join("other")
    before = open_descriptors()
    circle.tune_in()
    assert open_descriptors() == before, "nobody keeps what nobody uses"
    written.clear()
    for number in range(2 * OFTEN):
        circle.to_all(b"%d" % number)
    assert len(written) == (PEERS + 1) * 2 * OFTEN
    for hearer in circle.hearers:
        assert circle.taken(hearer) == [b"%d" % number for number in range(2 * OFTEN)]
    assert open_descriptors() == before, "it is offered once"


def test_one_without_descriptors_left_gets_all_by_its_pipe(
    make_router: MakeRouter, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heard(pipe: Pipe, said: int, fds: list[int], *_: object) -> None:
        if pipe.route == b">sender":
            for fd in fds:
                os.close(fd)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    circle = Circle(make_router, sockets)
    before = open_descriptors()
    monkeypatch.setattr(multicast, "Heard", heard)
    circle.tune_in()
    assert open_descriptors() == before
    circle.to_all(b"x")
    assert all(circle.taken(hearer) == [b"x"] for hearer in circle.hearers)


def test_a_sender_without_descriptors_left_says_so_ever_more_rarely(
    make_router: MakeRouter,
    sockets: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def memfd_create(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    circle = Circle(make_router, sockets)
    monkeypatch.setattr(os, "memfd_create", memfd_create)
    before = open_descriptors()
    for _ in range(7):
        circle.tune_in()
    assert open_descriptors() == before
    assert caplog.text.count("cannot send to many at once: Too many open files") == 3


def test_words_that_fit_nothing_do_no_harm(
    circle: Circle, stranger: MakeStranger, sockets: Path
) -> None:
    odd = stranger(address(sockets, "sender"), "odd")
    for kind in (multicast.HERE, multicast.TAKEN, multicast.OVER, multicast.WANT, 0, 15):
        odd.socket.sendall((1 << 30 | kind).to_bytes(4, "big"))
    odd.say([b"still here"])
    assert received(circle.sender) == [b"odd", b"still here"]
    circle.to_all(b"x")
    assert all(circle.taken(hearer) == [b"x"] for hearer in circle.hearers)


def offered(
    hearer: Router, stranger: MakeStranger, sockets: Path, seals: int, size: int
) -> tuple[Stranger, int]:
    """A stranger by whom that router has been given a ring, and the ring's memory."""
    sender = stranger(address(sockets, "hearer"), "sender")
    sender.socket.sendall(word(multicast.OFFER))
    while not hearer.reachable(b"sender"):
        hearer.wait(PATIENCE_S)
    hearer.readable()
    assert sender.socket.recv(4) == word(multicast.WANT)
    memory, wakes = os.memfd_create("ring", os.MFD_ALLOW_SEALING), os.eventfd(1)
    os.ftruncate(memory, size)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    place = 1 << 8  # the first of one
    socket.send_fds(sender.socket, [word(multicast.HERE | place << 4)], [memory, wakes])
    os.close(wakes)
    hearer.wait(PATIENCE_S)
    return sender, memory


def test_memory_that_may_be_taken_away_or_is_too_small_is_refused(
    make_router: MakeRouter, stranger: MakeStranger, sockets: Path
) -> None:
    hearer = make_router("hearer")
    for name, seals, size in (("a", 0, size_for(1)), ("b", fcntl.F_SEAL_SHRINK, 4096)):
        before = open_descriptors()
        sender, memory = offered(hearer, stranger, sockets, seals, size)
        os.close(memory)
        assert sender.socket.recv(4) == word(multicast.REFUSE), name
        sender.say([b"by the pipe"])
        assert received(hearer) == [b"sender", b"by the pipe"]
        sender.socket.close()
        while hearer.reachable(b"sender"):
            hearer.wait(PATIENCE_S)
        assert open_descriptors() == before


def test_who_writes_what_is_no_ring_is_cut_off(
    make_router: MakeRouter,
    stranger: MakeStranger,
    sockets: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hearer = make_router("hearer")
    sender, memory = offered(hearer, stranger, sockets, fcntl.F_SEAL_SHRINK, size_for(1))
    assert sender.socket.recv(4) == word(multicast.TAKEN)
    os.pwrite(memory, (1 << 60).to_bytes(8, "little"), 0)
    os.close(memory)
    sender.say([b"look"])
    assert cut_off(hearer, sender)
    assert "closed the pipe from b'sender': a ring of" in caplog.text


def test_who_wants_it_more_than_once_is_given_it_once(
    make_router: MakeRouter, stranger: MakeStranger, sockets: Path
) -> None:
    circle = Circle(make_router, sockets)
    odd = stranger(address(sockets, "sender"), "odd")
    while not circle.sender.reachable(b"odd"):
        circle.sender.wait(PATIENCE_S)
    circle.routes.append(b"odd")
    circle.tune_in()
    odd.socket.sendall(1_000 * word(multicast.WANT))
    for _ in range(3):
        circle.sender.readable()
    data, fds, _, _ = socket.recv_fds(odd.socket, 1 << 16, 8)
    assert data[:-4].endswith(word(multicast.OFFER) + pack([b"often 15"])[0])
    assert int.from_bytes(data[-4:], "big") & 15 == multicast.HERE
    assert len(fds) == 2
    for fd in fds:
        os.close(fd)
    odd.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        odd.socket.recv(1)


def test_the_end_of_a_ring_is_heeded_by_one_who_is_not_read(
    make_router: MakeRouter, stranger: MakeStranger, sockets: Path
) -> None:
    hearer = make_router("hearer")
    sender, memory = offered(hearer, stranger, sockets, fcntl.F_SEAL_SHRINK, size_for(1))
    os.close(memory)
    before = open_descriptors()
    while not hearer.is_behind(b"sender"):
        assert hearer.send(b"sender", [bytes(60_000)])
    sender.socket.sendall(word(multicast.OVER))
    while open_descriptors() == before:
        hearer.wait(PATIENCE_S)
    assert open_descriptors() == before - 2


def test_who_asks_on_and_on_and_reads_no_answer_gets_no_more(
    make_router: MakeRouter, stranger: MakeStranger, sockets: Path
) -> None:
    hearer = make_router("hearer")
    sender = stranger(address(sockets, "hearer"), "sender")
    sender.socket.setblocking(False)
    asked = 1_000 * (word(multicast.OFFER) + word(multicast.HERE))
    while not hearer.is_behind(b"sender"):
        with contextlib.suppress(BlockingIOError):
            sender.socket.send(asked)
        hearer.readable()
    waiting = hearer._pipes[b"sender"]._outbox
    held = len(waiting)
    for _ in range(20):
        with contextlib.suppress(BlockingIOError):
            sender.socket.send(asked)
        hearer.readable()
    assert len(waiting) == held


# --- interruptions and forks ----------------------------------------------------------------------


class Interrupted(Spin):
    """Finds what there is, and is interrupted before it can say so."""

    def wait(self, poll: Any, timeout_s: float | None) -> list[tuple[int, int]]:
        assert poll.poll(timeout_s)
        raise KeyboardInterrupt


def test_what_was_found_by_a_wait_that_was_interrupted_is_found_again(circle: Circle) -> None:
    circle.to_all(b"x")
    for hearer in circle.hearers:
        with pytest.raises(KeyboardInterrupt):
            hearer.wait(PATIENCE_S, None, Interrupted())
        assert received(hearer) == [b">sender", b"x"]


FORKS = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from monarch._src.net.router import Router
from tests.unit.net.test_multicast import Circle

made = []
def make_router(name):
    made.append(Router(name.encode(), f"ipc://{sys.argv[1]}/{name}"))
    return made[-1]

bare = len(os.listdir("/proc/self/fd"))
circle = Circle(make_router, Path(sys.argv[1]))
circle.tune_in()
child = os.fork()
if child == 0:
    for router in made:
        router.forked()
    assert circle.sender.send_all(circle.routes, [b"in its name"]) == circle.routes
    os._exit(len(os.listdir("/proc/self/fd")) - bare)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
circle.to_all(b"x")
print([circle.taken(hearer) for hearer in circle.hearers] == [[b"x"]] * 5)
"""


def test_a_fork_has_nothing_of_it_and_its_parent_keeps_it(
    sockets: Path, run_python: Callable[..., str]
) -> None:
    root = str(Path(__file__).parents[3])
    assert run_python(FORKS, str(sockets), root) == "True\n"
