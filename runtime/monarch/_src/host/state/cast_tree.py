"""Casts over many hosts: a tree of their agents, in which each host passes on to a few. No I/O.

The sender of a cast is the *root*. The hosts that have ranks of a region stand in a row, in the
order of ranks. The root cuts the row into at most `fanout` ranges of equal length and sends to the
*head* of each. The head takes the message for its own ranks and does the same with the rest of its
range, so each host knows the tree from the range that it was given. Answers are merged on the same
way back. The tree itself does not give three properties:

- *Order.* Casts to different regions have different trees, so a later cast may be faster. Each cast
  says, for each host, which cast of its sender came before it there, and the host holds it back
  until that one has been taken (`CastOrder`). Hosts that have had the same casts share one run.
  Within the host, and against direct messages, `net.state.message_order` holds.
- *Deaths.* The root keeps a cast until each range has reported that it is done. When a host on the
  way is lost, or reports a host that it cannot reach, the root sends once more to each host behind
  it. A host that has had the cast does not take it again, but repeats its answers. It keeps them
  for that purpose until the root has reported that it needs them no more (`standing`).
- *Errors*, ends of processes and streams do not wait: they go to the root directly.

`TreeSender` is the root's part for one mesh, `TreeRelays` the part of one host for all senders.
Events are methods named in the past tense; they return the messages to send.
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
Runs: TypeAlias = "list[tuple[int, int]]"  # number of places in a row, and their value
Where: TypeAlias = "tuple[int, tuple[int, ...], tuple[int, ...]]"  # offset, sizes, strides
Key: TypeAlias = "tuple[str, int, int]"  # sender, mesh, number of the cast


class HostRange(msgspec.Struct, frozen=True):
    """Some hosts in a row, by their places in the list of a cast; the first is the head."""

    first: int
    count: int

    @property
    def rest(self) -> HostRange:
        """The hosts that the head passes on to."""
        return HostRange(self.first + 1, self.count - 1)


def cut(stretch: HostRange, fanout: int) -> list[HostRange]:
    """At most `fanout` ranges, as equal as possible, that make up this one."""
    parts = min(fanout, stretch.count)
    found: list[HostRange] = []
    first = stretch.first
    for part in range(parts):
        count = stretch.count // parts + (part < stretch.count % parts)
        found.append(HostRange(first, count))
        first += count
    return found


def behind(stretch: HostRange, fanout: int, place: int) -> HostRange:
    """The range of which that place, one of these, is the head."""
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
    """Run-length encode these values."""
    runs: Runs = []
    for value in values:
        if runs and runs[-1][1] == value:
            runs[-1] = (runs[-1][0] + 1, value)
        else:
            runs.append((1, value))
    return runs


def part_of(runs: Runs, first: int, count: int) -> Runs:
    """The runs of the `count` places from place `first` on."""
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
    """The root's ranges; the root's own host is a range by itself and passes on to none."""
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

    open: the ranges that have not reported, by head. taken_over: the places that the root sends to
    itself, because a host on the way could not pass the cast on.
    """

    item: T
    size: int
    sites: tuple[int, ...]
    before: Runs
    open: dict[int, HostRange] = {}
    taken_over: set[int] = set()


class TreeSender(Generic[T]):
    """The casts of one process over the hosts of one mesh. Not thread-safe."""

    def __init__(self, fanout: int) -> None:
        self.fanout = fanout
        self.held = 0  # bytes of casts that are not known to be done
        self._last: dict[int, int] = {}  # by host: the last cast that was sent there
        self._newest = 0
        self._standing: dict[int, _Standing[T]] = {}  # by number, ascending
        # The hosts of the last cast, which are most often those of the next, and its number.
        self._last_cast: tuple[tuple[int, ...], int] = ((), 0)

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
        """The cast of that number, which is not done."""
        return self._standing[number].item

    def sites(self, number: int) -> tuple[int, ...]:
        """The hosts of that cast."""
        return self._standing[number].sites

    def cast(
        self, number: int, sites: tuple[int, ...], item: T, size: int, own: int | None = None
    ) -> list[SendToHead]:
        """A cast to these hosts begins, of which `own` is the root's. Numbers grow.

        size: its share of `held`.
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
        alike, last = self._last_cast
        self._last_cast = (sites, number)
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
        """The head at that place reports its range done, except for the ranges behind `missing`.

        The host that could not pass the cast on has reported the same places on another way.
        """
        standing = self._standing.get(number)
        if standing is None:
            return []
        found = [
            head
            for at in missing
            if at not in standing.taken_over
            for head in self._bypass(number, standing, at, alive=True)
        ]
        standing.open.pop(place, None)
        self._close(number, standing)
        return found

    def _close(self, number: int, standing: _Standing[T]) -> None:
        if not standing.open and number in self._standing:
            del self._standing[number]
            self.held -= standing.size

    def lost(self, site: int) -> list[SendToHead]:
        """That host is lost: send its share to each host behind it."""
        found: list[SendToHead] = []
        for number, standing in list(self._standing.items()):
            if site in standing.sites:
                found += self._bypass(number, standing, standing.sites.index(site), alive=False)
        return found

    def stuck(self, number: int, place: int, *, alive: bool) -> list[SendToHead]:
        """A host could not pass a cast on to that place; `alive`: the place itself answers."""
        standing = self._standing.get(number)
        if standing is None or not 0 <= place < len(standing.sites):
            return []
        return self._bypass(number, standing, place, alive=alive)

    def _bypass(
        self, number: int, standing: _Standing[T], place: int, *, alive: bool
    ) -> list[SendToHead]:
        whole = standing.open.pop(place, None)
        if whole is None:  # the rest of that range still answers through its head
            whole = next(
                (s for s in standing.open.values() if s.first < place < s.first + s.count), None
            )
        if whole is None:
            return []
        theirs = behind(whole, self.fanout, place)
        standing.taken_over.update(range(theirs.first, theirs.first + theirs.count))
        first = theirs.first if alive else theirs.first + 1
        found = [
            self._open(number, standing, HostRange(at, 1))
            for at in range(first, theirs.first + theirs.count)
            if at not in standing.open
        ]
        self._close(number, standing)
        return found

    def validate(self) -> None:
        """Assert every invariant. For tests."""
        assert self.held == sum(standing.size for standing in self._standing.values())
        assert list(self._standing) == sorted(self._standing)
        for standing in self._standing.values():
            assert standing.open
            assert sum(count for count, _ in standing.before) == len(standing.sites)


# --- a host ---------------------------------------------------------------------------------------


class CastOrder(Generic[T]):
    """The casts of one sender to one mesh as one host takes them: each once, in order."""

    __slots__ = ("_held", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self._held: dict[int, tuple[int, T]] = {}  # by number: the cast that precedes it, and it

    def on_cast(self, number: int, before: int, item: T, *, again: bool = False) -> list[T] | None:
        """A cast has arrived; returns the casts that are next now, in order. None: taken before.

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
    """One cast on one host. `up` is told when the whole range is done."""

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
    """Report to `to` that the range with that head is done, with these answers.

    missing: the ranges behind these places are not.
    """

    to: str
    key: Key
    place: int
    call: int
    answers: list[Answered]
    missing: tuple[int, ...] = ()


class Stuck(msgspec.Struct, frozen=True):
    """Report to the root that the cast could not be passed on to that place."""

    key: Key
    place: int


class TreeRelays:
    """All casts that this host passes on, and the answers that the root may ask for again."""

    def __init__(self) -> None:
        self._open: dict[Key, _TreeRelay] = {}
        # Casts with answers that were not sent yet: since when, the oldest first.
        self._since: dict[Key, float] = {}
        # Answers of this host's ranks to casts that are done here: call and answers, by sender and
        # mesh, and number.
        self._kept: dict[tuple[str, int], dict[int, tuple[int, list[Answered]]]] = {}
        self._check_above: dict[tuple[str, int], int] = {}  # up to how many go unchecked

    def taken(
        self, key: Key, up: str, place: int, call: int, children: dict[int, str], *, owes: bool
    ) -> list[Done]:
        """A cast was taken and passed on to these; `owes`: ranks of this host will answer."""
        relay = self._open[key] = _TreeRelay(up, place, call, owes, dict(children))
        return self._close_if_done(key, relay)

    def own_done(self, key: Key, answers: Sequence[Answered], now: float) -> list[Done]:
        """The ranks of this host have answered, or ended. `now`: seconds that grow."""
        relay = self._open.get(key)
        if relay is None:
            return []
        relay.owes_own = False
        relay.own = list(answers)
        return self._held(key, relay, answers, now)

    def child_done(
        self, key: Key, place: int, call: int, answers: Sequence[Answered],
        missing: Sequence[int], now: float,
    ) -> list[Done]:  # fmt: skip
        """A range that this host has passed on to is done."""
        relay = self._open.get(key)
        if relay is None or place not in relay.children:  # the root has taken it over
            return [Done(key[0], key, place, call, list(answers), tuple(missing))]
        del relay.children[place]
        relay.theirs += answers
        relay.missing += missing
        return self._held(key, relay, answers, now)

    def _held(
        self, key: Key, relay: _TreeRelay, answers: Sequence[Answered], now: float
    ) -> list[Done]:
        if answers:
            self._since.setdefault(key, now)
        return self._close_if_done(key, relay)

    def next_deadline(self) -> float | None:
        """The time at which `time_passed` has something to do, or None."""
        return next((since + HELD_S for since in self._since.values()), None)

    def time_passed(self, now: float) -> list[tuple[str, int, list[Answered]]]:
        """Answers to send now, since others take long: the caller, its call, the answers.

        They also go up when all is done: the caller takes each answer once.
        """
        late = [key for key, since in self._since.items() if since + HELD_S <= now]
        for key in late:
            del self._since[key]
        relays = [(key, self._open[key]) for key in late]
        return [(k[0], relay.call, merge([*relay.own, *relay.theirs])) for k, relay in relays]

    def asked_again(self, key: Key, place: int) -> list[Done]:
        """The root asks this host itself, and each host behind it."""
        relay = self._open.get(key)
        if relay is not None:
            relay.up, relay.place = key[0], place
            relay.children.clear()
            return self._close_if_done(key, relay)
        call, answers = self._kept.get(key[:2], {}).get(key[2], (0, []))
        return [Done(key[0], key, place, call, list(answers))]

    def host_lost(self, host: str) -> list[Done | Stuck]:
        """The link to that host is gone."""
        found: list[Done | Stuck] = []
        for key, relay in list(self._open.items()):
            for place in [at for at, name in relay.children.items() if name == host]:
                del relay.children[place]
                relay.missing.append(place)
                found.append(Stuck(key, place))
            found += self._close_if_done(key, relay)
        return found

    def standing(self, sender: str, mesh: int, rows: Sequence[tuple[int, int]], to: int) -> None:
        """Of casts before number `to`, the root waits for those in `rows` only."""
        kept = self._kept.get((sender, mesh))
        if kept is None or len(kept) <= self._check_above.get((sender, mesh), ENOUGH):
            return
        for number in list(kept):
            if number < to and not any(first <= number <= last for first, last in rows):
                del kept[number]
        self._check_above[sender, mesh] = max(ENOUGH, 2 * len(kept))

    def kept(self, mesh: int) -> list[tuple[str, int, list[Answered]]]:
        """Answers that may not have reached the root: the caller, its call, the answers."""
        found = [
            (sender, call, own)
            for (sender, of), kept in self._kept.items()
            if of == mesh
            for call, own in kept.values()
        ]
        found += [(k[0], b.call, b.own) for k, b in self._open.items() if k[1] == mesh]
        return [one for one in found if one[1] and one[2]]

    def forget(self, which: Callable[[str, int], bool]) -> None:
        """Drop all casts of these senders to these meshes."""
        for key in [key for key in self._open if which(key[0], key[1])]:
            del self._open[key]
            self._since.pop(key, None)
        for pair in [pair for pair in self._kept if which(*pair)]:
            del self._kept[pair]
            self._check_above.pop(pair, None)

    def _close_if_done(self, key: Key, relay: _TreeRelay) -> list[Done]:
        if not relay.is_done:
            return []
        del self._open[key]
        self._since.pop(key, None)
        if relay.own:
            self._kept.setdefault(key[:2], {})[key[2]] = (relay.call, relay.own)
        answers = merge([*relay.own, *relay.theirs])
        return [Done(relay.up, key, relay.place, relay.call, answers, tuple(relay.missing))]
