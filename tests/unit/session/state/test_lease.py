"""Who holds a session: every transition, and every order in which few things can happen."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from monarch._src.session.state.lease import (
    TRANSITIONS,
    Action,
    EndSession,
    Evict,
    Grant,
    Holder,
    Lease,
    LeaseState,
    Refuse,
    ReleaseClient,
    WriteRecord,
)

TIED, ATTACHED, DETACHED, ENDING = LeaseState


def client(name: str, pid: int = 7) -> Holder:
    return Holder(name, f"ipc:///{name}", pid, "began", "train.py", "here", 1.0)


FIRST, SECOND = client("client-1", 1), client("client-2", 2)


@pytest.fixture
def lease() -> Iterator[Lease]:
    """A lease whose invariants are looked at when the test has ended."""
    made = Lease(FIRST)
    yield made
    made.validate()


def attach(lease: Lease, who: Holder, *, take: bool = False, lives: bool = True) -> list[Action]:
    return lease.attach_asked(who, 2.0, take=take, holder_lives=lives)


def refusal(actions: list[Action]) -> str:
    (refused,) = (action for action in actions if isinstance(action, Refuse))
    return refused.why


# --- tied -----------------------------------------------------------------------------------------


def test_a_session_begins_tied_to_its_client(lease: Lease) -> None:
    assert (lease.state, lease.client, lease.name) == (TIED, "client-1", "")


def test_a_tied_session_ends_with_its_client(lease: Lease) -> None:
    assert lease.client_lost(2.0) == [EndSession("process 1 (train.py) on here has ended")]
    assert lease.state is ENDING


def test_nobody_else_can_have_a_tied_session_even_by_force(lease: Lease) -> None:
    for take in (False, True):
        why = refusal(attach(lease, SECOND, take=take))
        assert why == "it is not kept: it belongs to process 1 (train.py) on here and ends with it"
    assert lease.client == "client-1"


def test_a_tied_session_that_is_let_go_of_ends(lease: Lease) -> None:
    why = "process 1 (train.py) on here has detached from it"
    assert lease.detached("client-1", 2.0) == [EndSession(why)]


# --- kept -----------------------------------------------------------------------------------------


def keep(lease: Lease, *meshes: int) -> None:
    assert lease.keep_asked("client-1", "training", meshes, 2.0) == [WriteRecord()]
    lease.validate()


def test_a_kept_session_outlives_its_client(lease: Lease) -> None:
    keep(lease, 5)
    why = "process 1 (train.py) on here has ended"
    assert lease.client_lost(3.0) == [ReleaseClient("client-1", why), WriteRecord()]
    assert (lease.state, lease.client, lease.left) == (DETACHED, "", why)
    assert lease.holder is FIRST  # who owns the meshes, until somebody takes them up


def test_letting_go_is_told_from_dying(lease: Lease) -> None:
    keep(lease, 5)
    assert lease.detached("client-1", 3.0)[0] == ReleaseClient(
        "client-1", "process 1 (train.py) on here has detached from it"
    )


def test_a_name_without_a_mesh_keeps_nothing(lease: Lease) -> None:
    keep(lease)
    assert isinstance(lease.client_lost(3.0)[0], EndSession)


def test_it_is_kept_again_only_by_the_same_name(lease: Lease) -> None:
    keep(lease, 5)
    keep(lease, 6)
    assert lease.meshes == {5, 6}
    why = refusal(lease.keep_asked("client-1", "other", [7], 3.0))
    assert why == "it is kept as 'training' already; use that name"
    assert lease.meshes == {5, 6}


def test_only_the_holder_keeps_or_lets_go(lease: Lease) -> None:
    assert "client-1" not in refusal(lease.keep_asked("client-2", "mine", [5], 2.0))
    keep(lease, 5)
    assert lease.detached("client-2", 3.0) == []
    assert lease.client == "client-1"


# --- attached -------------------------------------------------------------------------------------


def test_who_attaches_to_a_detached_session_holds_it(lease: Lease) -> None:
    keep(lease, 5)
    lease.client_lost(3.0)
    assert attach(lease, SECOND) == [WriteRecord(), Grant(SECOND)]
    assert (lease.state, lease.client, lease.number, lease.left) == (ATTACHED, "client-2", 1, "")


def test_a_second_one_is_refused_with_who_holds_it(lease: Lease) -> None:
    keep(lease, 5)
    why = refusal(attach(lease, SECOND))
    assert why == "process 1 (train.py) on here holds it; take=True (--take) takes it over"
    assert lease.client == "client-1"


def test_a_holder_that_lives_is_ousted_if_asked_for(lease: Lease) -> None:
    keep(lease, 5)
    oust = Evict("client-1", "process 2 (train.py) on here has taken it over")
    assert attach(lease, SECOND, take=True) == [oust, WriteRecord(), Grant(SECOND)]
    assert lease.client_lost(4.0)[0] == ReleaseClient(
        "client-2", "process 2 (train.py) on here has ended"
    )


def test_a_holder_that_is_dead_and_not_yet_missed_is_in_nobodys_way(lease: Lease) -> None:
    keep(lease, 5)
    leave, record, again, welcome = attach(lease, SECOND, lives=False)
    assert leave == ReleaseClient("client-1", "process 1 (train.py) on here has ended")
    assert (record, again, welcome) == (WriteRecord(), WriteRecord(), Grant(SECOND))


def test_one_that_comes_when_nothing_is_left_is_refused(lease: Lease) -> None:
    keep(lease)
    end, refused = attach(lease, SECOND, lives=False)
    assert isinstance(end, EndSession)
    assert refused == Refuse("client-2", "it is ending")
    assert refusal(attach(lease, SECOND)) == "it is ending"


# --- the end of what is kept ----------------------------------------------------------------------


def test_it_ends_when_its_last_mesh_is_gone_and_nobody_is_attached(lease: Lease) -> None:
    keep(lease, 5, 6)
    lease.client_lost(3.0)
    assert lease.mesh_gone(5, 4.0) == [WriteRecord()]
    assert lease.mesh_gone(6, 5.0) == [EndSession("all of its kept meshes have ended")]


def test_while_somebody_is_attached_it_goes_on_without_meshes(lease: Lease) -> None:
    keep(lease, 5)
    assert lease.mesh_gone(5, 4.0) == [WriteRecord()]
    assert lease.state is ATTACHED
    assert lease.mesh_gone(99, 4.0) == []  # one that is tied


def test_it_can_be_told_to_end_in_any_state(lease: Lease) -> None:
    keep(lease, 5)
    lease.client_lost(3.0)
    assert lease.told_to_end("by a signal", 4.0) == [EndSession("by a signal")]
    assert lease.told_to_end("by a signal", 4.0) == []


# --- all orders -----------------------------------------------------------------------------------

EVENTS: dict[str, Callable[[Lease], list[Action]]] = {
    "keep": lambda lease: lease.keep_asked(lease.holder.node, "training", [5], 2.0),
    "second mesh": lambda lease: lease.keep_asked(lease.holder.node, "training", [6], 2.0),
    "mesh gone": lambda lease: lease.mesh_gone(5, 2.0),
    "lost": lambda lease: lease.client_lost(2.0),
    "let go": lambda lease: lease.detached(lease.holder.node, 2.0),
    "attach": lambda lease: attach(lease, client(f"client-{lease.number + 10}")),
    "take": lambda lease: attach(lease, client(f"client-{lease.number + 10}"), take=True),
    "attach to the dead": lambda lease: attach(lease, SECOND, lives=False),
    "end": lambda lease: lease.told_to_end("asked", 2.0),
}


def test_in_every_order_of_four_events_what_is_told_fits_the_state() -> None:
    seen: set[tuple[LeaseState, LeaseState]] = set()
    for events in itertools.product(EVENTS, repeat=4):
        lease = Lease(FIRST)
        ends = 0
        for event in events:
            before, client_before = lease.state, lease.client
            actions = EVENTS[event](lease)
            lease.validate()
            seen.add((before, lease.state))
            ends += sum(isinstance(action, EndSession) for action in actions)
            left = [a.node for a in actions if isinstance(a, (ReleaseClient, Evict))]
            welcomed = [a.holder.node for a in actions if isinstance(a, Grant)]
            # One client at a time: it is let in when the one before is out, and out only once.
            assert len(left) <= 1 >= len(welcomed)
            assert left in ([], [client_before])
            assert not welcomed or lease.client == welcomed[0]
            assert not (welcomed and client_before) or left == [client_before]
            assert not lease.client or lease.client == client_before or welcomed
            refused = any(isinstance(action, Refuse) for action in actions)
            assert not (refused and (welcomed or any(isinstance(a, WriteRecord) for a in actions)))
        assert ends == (lease.state is ENDING)
    possible = {(before, after) for before, afters in TRANSITIONS.items() for after in afters}
    assert {pair for pair in seen if pair[0] is not pair[1]} == {
        pair for pair in possible if pair[0] is not pair[1]
    }
