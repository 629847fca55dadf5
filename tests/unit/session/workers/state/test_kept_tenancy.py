"""Who has a worker host of which a session keeps something, as events in and actions out."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from monarch._src.session.state.lease import EndSession
from monarch._src.session.workers.state.tenancy import (
    Clear,
    Drop,
    Evict,
    Grant,
    Refuse,
    ReleaseClient,
    Resume,
    Tenancy,
    TenancyState,
    Tenant,
)

TOKEN = "0123"


def client(name: str, number: int = 0, token: str = TOKEN, request: int = 1) -> Tenant:
    return Tenant(name, request, 7, "python train.py", "h1", 30.0, number, token)


ANN = client("ann", token="")
BOB, CARL = client("bob", 1), client("carl", 2)


def kept_by_ann() -> Tenancy:
    tenancy = Tenancy()
    tenancy.asked(ANN)
    assert tenancy.keep_asked("ann", TOKEN, "training")
    return tenancy


def detached() -> Tenancy:
    tenancy = kept_by_ann()
    assert tenancy.lost("ann", "gone") == [ReleaseClient(ANN, "gone", 0)]
    return tenancy


def refused(actions: Sequence[object]) -> str:
    (refusal,) = actions
    assert isinstance(refusal, Refuse)
    return refusal.why


def test_what_is_kept_is_left_when_the_tenant_is_lost_and_taken_up_by_the_next_client() -> None:
    tenancy = detached()
    assert tenancy.state is TenancyState.DETACHED
    assert tenancy.holder == ""
    assert tenancy.asked(BOB) == [Resume(BOB)]
    assert tenancy.holder == "bob"


def test_a_tenant_that_goes_is_told_when_what_was_tied_has_ended() -> None:
    tenancy = kept_by_ann()
    (leave,) = tenancy.detached("ann", 5)
    assert isinstance(leave, ReleaseClient)
    assert (leave.tenant, leave.request) == (ANN, 5)


def test_one_that_lets_go_of_the_host_leaves_nothing() -> None:
    tenancy = kept_by_ann()
    (clear,) = tenancy.released("ann", 5)
    assert isinstance(clear, Clear)
    assert tenancy.cleared() == [Drop(ANN, 5)]
    assert "no mesh of that session" in refused(tenancy.asked(BOB))


def test_the_next_client_need_not_wait_until_the_one_before_it_is_known_to_be_gone() -> None:
    tenancy = kept_by_ann()
    oust, take_up = tenancy.asked(BOB)
    assert isinstance(oust, Evict)
    assert oust.tenant == ANN
    assert take_up == Resume(BOB)
    assert tenancy.lost("ann", "gone") == []
    assert tenancy.holder == "bob"


def test_who_was_replaced_without_knowing_it_does_not_come_back() -> None:
    tenancy = kept_by_ann()
    tenancy.asked(CARL)
    assert "carl" not in refused(tenancy.asked(BOB))
    tenancy.lost("carl", "gone")
    assert "has attached to that session since" in refused(tenancy.asked(BOB))
    assert tenancy.asked(client("dora", 3)) == [Resume(client("dora", 3))]


def test_who_knows_the_token_of_another_session_gets_nothing() -> None:
    tenancy = detached()
    assert "no mesh of that session" in refused(tenancy.asked(client("eve", 9, "4567")))
    assert tenancy.state is TenancyState.DETACHED


def test_who_wants_the_host_as_it_is_hears_which_session_keeps_it_and_how_that_ends() -> None:
    why = refused(detached().asked(client("fred", token="")))
    assert "the session 'training' keeps meshes on it" in why
    assert "monarch kill training" in why


def test_who_waits_for_a_tenant_out_of_reach_is_refused_when_that_leaves_something() -> None:
    tenancy = kept_by_ann()
    tenancy.out_of_reach("ann")
    waiting = client("fred", token="")
    assert tenancy.asked(waiting) == []
    leave, refusal = tenancy.lost("ann", "gone")
    assert isinstance(leave, ReleaseClient)
    assert isinstance(refusal, Refuse)
    assert refusal.tenant == waiting


def test_what_nobody_comes_for_is_ended_and_the_host_is_free_for_whoever_asks() -> None:
    tenancy = detached()
    assert tenancy.given_up("too late") == [Clear(ANN, "too late")]
    assert tenancy.cleared() == [Drop(ANN, 0)]
    fred = client("fred", token="")
    assert tenancy.asked(fred) == [Grant(fred)]


def test_only_the_tenant_can_have_something_kept_and_only_while_it_has_the_host() -> None:
    tenancy = Tenancy()
    assert not tenancy.keep_asked("ann", TOKEN, "training")
    tenancy.asked(ANN)
    assert not tenancy.keep_asked("bob", TOKEN, "training")
    tenancy.released("ann", 1)
    assert not tenancy.keep_asked("ann", TOKEN, "training")


def test_a_token_is_in_no_repr() -> None:
    assert TOKEN not in repr(BOB)


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_one_client_at_a_time_has_it_and_their_numbers_only_grow(
    seed: int,
) -> None:
    chance = random.Random(seed)
    tenancy = Tenancy()
    holder, number, kept, clearing = "", 0, False, False
    asked = 0
    for step in range(1, 80):
        node = holder if holder and chance.random() < 0.4 else f"c{step}"
        match chance.randrange(8):
            case 0 | 1:
                if node == holder:
                    continue
                asked = chance.randrange(6)
                token = TOKEN if chance.random() < 0.6 else ""
                actions = tenancy.asked(client(node, asked, token, step))
            case 2:
                kept |= tenancy.keep_asked(node, TOKEN, "training")
                actions = []
            case 3:
                actions = tenancy.lost(node, "gone")
            case 4:
                actions = tenancy.detached(node, step)
            case 5:
                actions = tenancy.released(node, step)
            case 6:
                actions = tenancy.given_up("too late") if chance.random() < 0.3 else []
            case _:
                actions = tenancy.cleared()
        tenancy.validate()
        for action in actions:
            match action:
                case Grant(tenant):
                    assert not holder
                    assert not kept
                    holder, number = tenant.node, tenant.number
                case Resume(tenant):
                    assert kept
                    assert not holder
                    assert tenant.number > number
                    holder, number = tenant.node, tenant.number
                case ReleaseClient(tenant) | Evict(tenant):
                    assert kept
                    assert tenant.node == holder
                    holder = ""
                case Clear():
                    clearing, kept, holder = True, False, ""
                case Drop():
                    assert clearing
                    clearing = False
                case Refuse():
                    pass
                case EndSession():
                    pytest.fail("nobody has told it to end")
        assert tenancy.holder == holder
