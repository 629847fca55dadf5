"""Casts over many hosts: a tree of their agents, in which each host passes on to a few. No I/O.

Whoever casts is the *root*. The hosts that have ranks of a region stand in a row, in the order of
ranks; the root cuts the row into at most `fanout` stretches of equal length and sends to the *head*
of each, which takes the message for its own ranks and does the same with the rest of its stretch.
So everybody knows the tree from the stretch that it was given. Answers are merged the same way
back. Three things are not given by the tree itself:

- *Order.* Casts to different regions have different trees, so a later one may be faster. Each
  says, for each host, which cast of its sender came before it there, and the host holds it back
  until that has been taken (`CastOrder`). Hosts that have had the same casts are told in one run.
  Within the host, and against direct messages, `net.state.message_order` holds.
- *Deaths.* The root keeps what it has cast until each stretch has said that it is done. When a
  host on the way is lost, or says whom it cannot pass on to, the root itself sends to each host
  that was behind it, once more; one that has had it takes it no second time, and says again what
  it had answered. It keeps its own answers for that, until the root says that it needs them no more
  (`settled`).
- *Bad news*, ends of processes and streams don't wait: they go to the root without a detour.

`TreeSender` is the root's part for one mesh, `TreeRelays` that of one host, for all who cast there.
Events are methods named in the past tense; they return what is to be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Generic, TypeAlias, TypeVar

import msgspec

from monarch._src.host.state.cast_relay import HELD_S, Answered, merge
from monarch._src.shape import NDSlice

T = TypeVar("T")
MOST_ROWS = 16
ENOUGH = 64
Runs: TypeAlias = "list[tuple[int, int]]"  # how many places in a row, and the value of each
Where: TypeAlias = "tuple[int, tuple[int, ...], tuple[int, ...]]"  # offset, sizes, strides
Key: TypeAlias = "tuple[str, int, int]"  # who has cast, to which mesh, the number of the cast


class HostRange(msgspec.Struct, frozen=True):
    """Some hosts in a row, by their places in the list of a cast; the first one is the head."""

    first: int
    count: int

    @property
    def rest(self) -> HostRange:
        """The hosts that the head passes on to."""
        return HostRange(self.first + 1, self.count - 1)


def cut(stretch: HostRange, fanout: int) -> list[HostRange]:
    """At most `fanout` stretches, as equal as can be, that make up this one."""
    parts = min(fanout, stretch.count)
    found: list[HostRange] = []
    first = stretch.first
    for part in range(parts):
        count = stretch.count // parts + (part < stretch.count % parts)
        found.append(HostRange(first, count))
        first += count
    return found


def behind(stretch: HostRange, fanout: int, place: int) -> HostRange:
    """The stretch of which that place, one of these, is the head."""
    while stretch.first != place:
        rest = cut(stretch.rest, fanout)
        stretch = next(s for s in rest if s.first <= place < s.first + s.count)
    return stretch


@lru_cache(maxsize=64)
def sites_of(where: Where, block: int, without: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The numbers of the hosts that have some of these ranks, `block` on each, in order."""
    offset, sizes, strides = where
    ranks = NDSlice(offset=offset, sizes=sizes, strides=strides).ranks()
    return tuple(sorted({rank // block for rank in ranks}.difference(without)))


def in_runs(values: Iterable[int]) -> Runs:
    """Equal ones in a row told once."""
    runs: Runs = []
    for value in values:
        if runs and runs[-1][1] == value:
            runs[-1] = (runs[-1][0] + 1, value)
        else:
            runs.append((1, value))
    return runs


def part_of(runs: Runs, first: int, count: int) -> Runs:
    """The runs of `count` places from the one that is `first` among those that these are of."""
    found: Runs = []
    at = 0
    for length, value in runs:
        low, high = max(first, at), min(first + count, at + length)
        if low < high:
            found.append((high - low, value))
        at += length
    return found


@lru_cache(maxsize=64)
def _from_root(sites: tuple[int, ...], fanout: int, own: int | None) -> tuple[HostRange, ...]:
    """All of them in stretches; the host of the root is one by itself, and passes on to none."""
    if own not in sites:
        return tuple(cut(HostRange(0, len(sites)), fanout))
    at = sites.index(own)
    before, after = HostRange(0, at), HostRange(at + 1, len(sites) - at - 1)
    return (*cut(before, fanout), HostRange(at, 1), *cut(after, fanout))


# --- the root -------------------------------------------------------------------------------------


class SendToHead(msgspec.Struct, frozen=True):
    """Send the cast of that number to the head of a stretch.

    site: the head's number in the mesh. before: of each host of the stretch, the cast before it.
    """

    number: int
    site: int
    stretch: HostRange
    before: Runs


class _Standing(msgspec.Struct, Generic[T]):
    """A cast that is not known to be done.

    open: the stretches that have not said so, by head. asked: the places that the root has taken
    over, since somebody on the way to them could not pass it on.
    """

    item: T
    size: int
    sites: tuple[int, ...]
    before: Runs
    open: dict[int, HostRange] = {}
    asked: set[int] = set()


class TreeSender(Generic[T]):
    """What one process has cast over the hosts of one mesh. Not thread-safe."""

    def __init__(self, fanout: int) -> None:
        self.fanout = fanout
        self.held = 0  # bytes of what is not known to be done
        self._last: dict[int, int] = {}  # by host: the last cast that was sent there
        self._newest = 0
        self._standing: dict[int, _Standing[T]] = {}  # by number, ascending
        # Of the tuple of hosts that was cast to last, which is most often that of the next.
        self._alike: tuple[tuple[int, ...], int] = ((), 0)

    def standing(self) -> list[tuple[int, int]]:
        """The numbers of casts that are not known to be done: first and last of each row.

        If there are more rows than `MOST_ROWS`, the last of these goes up to the newest cast.
        """
        rows: list[tuple[int, int]] = []
        for number in self._standing:
            if rows and rows[-1][1] == number - 1:
                rows[-1] = (rows[-1][0], number)
            elif len(rows) == MOST_ROWS:
                rows[-1] = (rows[-1][0], self._newest)
                break
            else:
                rows.append((number, number))
        return rows

    def item(self, number: int) -> T:
        """What was cast under that number, which is not done."""
        return self._standing[number].item

    def sites(self, number: int) -> tuple[int, ...]:
        """The hosts of that cast."""
        return self._standing[number].sites

    def cast(
        self, number: int, sites: tuple[int, ...], item: T, size: int, own: int | None = None
    ) -> list[SendToHead]:
        """Something is cast to these hosts, of which `own` is the root's. Numbers grow.

        size: what it counts of what is `held`.
        """
        self._newest = number
        if not sites:
            return []
        before = self._before(number, sites)
        standing = _Standing(item, size, sites, before)
        self._standing[number] = standing
        self.held += size
        return [
            self._open(number, standing, stretch) for stretch in _from_root(sites, self.fanout, own)
        ]

    def heads(self, sites: tuple[int, ...], own: int | None = None) -> list[int]:
        """Of these hosts, those to which the root itself sends."""
        return [sites[stretch.first] for stretch in _from_root(sites, self.fanout, own)]

    def _before(self, number: int, sites: tuple[int, ...]) -> Runs:
        alike, last = self._alike
        self._alike = (sites, number)
        if alike == sites:
            return [(len(sites), last)]
        if last:
            self._last.update(dict.fromkeys(alike, last))
        return in_runs(self._last.get(site, 0) for site in sites)

    def _open(self, number: int, standing: _Standing[T], stretch: HostRange) -> SendToHead:
        standing.open[stretch.first] = stretch
        before = part_of(standing.before, stretch.first, stretch.count)
        return SendToHead(number, standing.sites[stretch.first], stretch, before)

    def done(self, number: int, place: int, missing: Sequence[int] = ()) -> list[SendToHead]:
        """The head at that place has said that its stretch is done, but for what is behind these.

        Who could not pass it on to them has said so before, but on another way.
        """
        standing = self._standing.get(number)
        if standing is None:
            return []
        found = [
            head
            for at in missing
            if at not in standing.asked
            for head in self._around(number, standing, at, alive=True)
        ]
        standing.open.pop(place, None)
        self._close(number, standing)
        return found

    def _close(self, number: int, standing: _Standing[T]) -> None:
        if not standing.open and number in self._standing:
            del self._standing[number]
            self.held -= standing.size

    def lost(self, site: int) -> list[SendToHead]:
        """That host is gone: what it was to pass on goes to each host behind it."""
        found: list[SendToHead] = []
        for number, standing in list(self._standing.items()):
            if site in standing.sites:
                found += self._around(number, standing, standing.sites.index(site), alive=False)
        return found

    def stuck(self, number: int, place: int, *, alive: bool) -> list[SendToHead]:
        """Somebody on the way could not pass a cast on to that place; `alive`: it is there."""
        standing = self._standing.get(number)
        if standing is None or not 0 <= place < len(standing.sites):
            return []
        return self._around(number, standing, place, alive=alive)

    def _around(
        self, number: int, standing: _Standing[T], place: int, *, alive: bool
    ) -> list[SendToHead]:
        whole = standing.open.pop(place, None)
        if whole is None:  # the rest of that stretch still answers through its head
            whole = next(
                (s for s in standing.open.values() if s.first < place < s.first + s.count), None
            )
        if whole is None:
            return []
        theirs = behind(whole, self.fanout, place)
        standing.asked.update(range(theirs.first, theirs.first + theirs.count))
        first = theirs.first if alive else theirs.first + 1
        found = [
            self._open(number, standing, HostRange(at, 1))
            for at in range(first, theirs.first + theirs.count)
            if at not in standing.open
        ]
        self._close(number, standing)
        return found

    def validate(self) -> None:
        """Assert what always holds. For tests."""
        assert self.held == sum(standing.size for standing in self._standing.values())
        assert list(self._standing) == sorted(self._standing)
        for standing in self._standing.values():
            assert standing.open
            assert sum(count for count, _ in standing.before) == len(standing.sites)


# --- a host ---------------------------------------------------------------------------------------


class CastOrder(Generic[T]):
    """The casts of one sender to one mesh, as they come to one host: each once, in order."""

    __slots__ = ("_held", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self._held: dict[int, tuple[int, T]] = {}  # by number: what has to come before, and it

    def came(self, number: int, before: int, item: T, *, again: bool = False) -> list[T] | None:
        """One came; those that are next now, in order. None: it was taken before.

        again: the root itself has sent it, after others have failed to pass it on.
        """
        if number <= self.taken:
            return None
        if again or number not in self._held:
            self._held[number] = (before, item)
        found: list[T] = []
        while self._held:
            first = min(self._held)
            before, item = self._held[first]
            if before > self.taken:
                break
            del self._held[first]
            self.taken = first
            found.append(item)
        return found


class _TreeRelay(msgspec.Struct):
    """One cast on one host. `up`: who is told when all is done."""

    up: str
    place: int
    call: int
    owes_own: bool
    children: dict[int, str]  # by place: the host there
    own: list[Answered] = []
    theirs: list[Answered] = []
    missing: list[int] = []

    @property
    def is_done(self) -> bool:
        return not (self.owes_own or self.children)


class Done(msgspec.Struct, frozen=True):
    """Tell `to` that the stretch with that head is done, with these answers.

    missing: what is behind these places is not.
    """

    to: str
    key: Key
    place: int
    call: int
    answers: list[Answered]
    missing: tuple[int, ...] = ()


class Stuck(msgspec.Struct, frozen=True):
    """Tell who has cast that this could not be passed on to that place."""

    key: Key
    place: int


class TreeRelays:
    """All casts that this host was given to pass on, and may be asked for again."""

    def __init__(self) -> None:
        self._open: dict[Key, _TreeRelay] = {}
        # Those that have answers which nobody was told: since when, the oldest first.
        self._since: dict[Key, float] = {}
        # What the ranks of this host have answered to casts that are done here: call and answers,
        # by sender and mesh, and number.
        self._kept: dict[tuple[str, int], dict[int, tuple[int, list[Answered]]]] = {}
        self._enough: dict[tuple[str, int], int] = {}  # how many of them are no reason to look

    def taken(
        self, key: Key, up: str, place: int, call: int, children: dict[int, str], *, owes: bool
    ) -> list[Done]:
        """A cast was taken, and passed on to these; `owes`: the ranks here will answer."""
        bough = self._open[key] = _TreeRelay(up, place, call, owes, dict(children))
        return self._looked(key, bough)

    def own_done(self, key: Key, answers: Sequence[Answered], now: float) -> list[Done]:
        """The ranks of this host have answered, or ended. `now`: seconds that grow."""
        bough = self._open.get(key)
        if bough is None:
            return []
        bough.owes_own = False
        bough.own = list(answers)
        return self._held(key, bough, answers, now)

    def child_done(
        self, key: Key, place: int, call: int, answers: Sequence[Answered],
        missing: Sequence[int], now: float,
    ) -> list[Done]:  # fmt: skip
        """A stretch that this host has passed on to is done."""
        bough = self._open.get(key)
        if bough is None or place not in bough.children:  # it is answered around us since
            return [Done(key[0], key, place, call, list(answers), tuple(missing))]
        del bough.children[place]
        bough.theirs += answers
        bough.missing += missing
        return self._held(key, bough, answers, now)

    def _held(
        self, key: Key, bough: _TreeRelay, answers: Sequence[Answered], now: float
    ) -> list[Done]:
        if answers:
            self._since.setdefault(key, now)
        return self._looked(key, bough)

    def next_deadline(self) -> float | None:
        """When `time_passed` has something to do, if nothing else happens."""
        return next((since + HELD_S for since in self._since.values()), None)

    def time_passed(self, now: float) -> list[tuple[str, int, list[Answered]]]:
        """Look at the time: what is to be told at once, since others take long.

        To whom, of which call, which answers. They go up too when all is done: who called takes
        each once.
        """
        late = [key for key, since in self._since.items() if since + HELD_S <= now]
        for key in late:
            del self._since[key]
        boughs = [(key, self._open[key]) for key in late]
        return [(k[0], bough.call, merge([*bough.own, *bough.theirs])) for k, bough in boughs]

    def asked_again(self, key: Key, place: int) -> list[Done]:
        """The root asks this host itself, and each that is behind it."""
        bough = self._open.get(key)
        if bough is not None:
            bough.up, bough.place = key[0], place
            bough.children.clear()
            return self._looked(key, bough)
        call, answers = self._kept.get(key[:2], {}).get(key[2], (0, []))
        return [Done(key[0], key, place, call, list(answers))]

    def host_lost(self, host: str) -> list[Done | Stuck]:
        """Nothing goes to that host from here."""
        found: list[Done | Stuck] = []
        for key, bough in list(self._open.items()):
            for place in [at for at, name in bough.children.items() if name == host]:
                del bough.children[place]
                bough.missing.append(place)
                found.append(Stuck(key, place))
            found += self._looked(key, bough)
        return found

    def standing(self, sender: str, mesh: int, rows: Sequence[tuple[int, int]], to: int) -> None:
        """Of casts before the one of number `to` the root waits for these only."""
        kept = self._kept.get((sender, mesh))
        if kept is None or len(kept) <= self._enough.get((sender, mesh), ENOUGH):
            return
        for number in list(kept):
            if number < to and not any(first <= number <= last for first, last in rows):
                del kept[number]
        self._enough[sender, mesh] = max(ENOUGH, 2 * len(kept))

    def kept(self, mesh: int) -> list[tuple[str, int, list[Answered]]]:
        """What was answered here and may be on its way yet: to whom, to which call."""
        found = [
            (sender, call, own)
            for (sender, of), kept in self._kept.items()
            if of == mesh
            for call, own in kept.values()
        ]
        found += [(k[0], b.call, b.own) for k, b in self._open.items() if k[1] == mesh]
        return [one for one in found if one[1] and one[2]]

    def forget(self, which: Callable[[str, int], bool]) -> None:
        """Nobody wants to hear any more of what these senders have cast to these meshes."""
        for key in [key for key in self._open if which(key[0], key[1])]:
            del self._open[key]
            self._since.pop(key, None)
        for pair in [pair for pair in self._kept if which(*pair)]:
            del self._kept[pair]
            self._enough.pop(pair, None)

    def _looked(self, key: Key, bough: _TreeRelay) -> list[Done]:
        if not bough.is_done:
            return []
        del self._open[key]
        self._since.pop(key, None)
        if bough.own:
            self._kept.setdefault(key[:2], {})[key[2]] = (bough.call, bough.own)
        answers = merge([*bough.own, *bough.theirs])
        return [Done(bough.up, key, bough.place, bough.call, answers, tuple(bough.missing))]
