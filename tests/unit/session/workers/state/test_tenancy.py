"""Who has a worker host, as events in and actions out."""

from __future__ import annotations

import random

import pytest

from monarch._src.session.state.lease import EndSession
from monarch._src.session.workers.state.tenancy import (
    Clear,
    Drop,
    Grant,
    Refuse,
    Tenancy,
    TenancyState,
    Tenant,
)


def client(name: str, request: int = 1) -> Tenant:
    return Tenant(name, request, 7, "python train.py", "h1", 30.0)


ANN, BOB, CARL = client("ann"), client("bob"), client("carl")


def held_by_ann() -> Tenancy:
    tenancy = Tenancy()
    assert tenancy.asked(ANN) == [Grant(ANN)]
    return tenancy


def test_who_asks_first_has_it_and_another_is_told_who_that_is() -> None:
    tenancy = held_by_ann()
    (refusal,) = tenancy.asked(BOB)
    assert isinstance(refusal, Refuse)
    assert refusal.tenant == BOB
    assert "process 7 (python train.py) on h1 has it" in refusal.why
    assert tenancy.holder == "ann"


def test_who_lets_go_is_told_when_nothing_is_left_and_the_next_one_has_it_then() -> None:
    tenancy = held_by_ann()
    (clear,) = tenancy.released("ann", 5)
    assert isinstance(clear, Clear)
    assert clear.tenant == ANN
    assert tenancy.asked(BOB) == []
    assert tenancy.cleared() == [Drop(ANN, 5), Grant(BOB)]
    assert tenancy.holder == "bob"


def test_who_asks_while_the_tenant_cannot_be_reached_waits_until_that_is_lost() -> None:
    tenancy = held_by_ann()
    tenancy.out_of_reach("ann")
    assert tenancy.asked(BOB) == []
    assert tenancy.lost("ann", "it was silent") == [Clear(ANN, "it was silent")]
    assert tenancy.cleared() == [Drop(ANN, 0), Grant(BOB)]


def test_or_until_that_is_back() -> None:
    tenancy = held_by_ann()
    tenancy.out_of_reach("ann")
    assert tenancy.asked(BOB) == []
    (refusal,) = tenancy.reached("ann")
    assert isinstance(refusal, Refuse)
    assert refusal.tenant == BOB


def test_who_waits_and_goes_gets_nothing() -> None:
    tenancy = held_by_ann()
    tenancy.released("ann", 1)
    tenancy.asked(BOB)
    assert tenancy.lost("bob", "it left") == []
    assert tenancy.cleared() == [Drop(ANN, 1)]
    assert tenancy.state is TenancyState.FREE


def test_one_that_lets_go_and_is_lost_before_the_end_is_told_nothing() -> None:
    tenancy = held_by_ann()
    tenancy.released("ann", 5)
    assert tenancy.lost("ann", "gone") == []
    assert tenancy.cleared() == [Drop(ANN, 0)]


def test_strangers_take_nothing_away() -> None:
    tenancy = held_by_ann()
    assert tenancy.released("bob", 1) == []
    assert tenancy.lost("bob", "gone") == []
    assert tenancy.holder == "ann"


def test_it_ends_when_it_is_told_to_and_refuses_who_waits_or_asks() -> None:
    tenancy = held_by_ann()
    tenancy.released("ann", 1)
    tenancy.asked(BOB)
    assert tenancy.told_to_end("SIGTERM") == [Refuse(BOB, "it is ending"), EndSession("SIGTERM")]
    assert tenancy.told_to_end("SIGTERM") == []
    assert tenancy.asked(CARL) == [Refuse(CARL, "it is ending")]
    assert tenancy.cleared() == []


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_each_who_asks_is_answered_once_and_one_at_a_time_has_it(
    seed: int,
) -> None:
    chance = random.Random(seed)
    tenancy = Tenancy()
    open_questions: dict[str, int] = {}
    holder = ""
    clearing = False
    for step in range(1, 60):
        node = chance.choice(["ann", "bob", "carl"])
        match chance.randrange(7):
            case 0 | 1:
                if node in open_questions or node == holder:
                    continue  # a process asks once at a time
                open_questions[node] = step
                actions = tenancy.asked(client(node, step))
            case 2:
                actions = tenancy.out_of_reach(node)
            case 3:
                actions = tenancy.reached(node)
            case 4:
                actions = tenancy.lost(node, "gone")
                open_questions.pop(node, None)
            case 5:
                actions = tenancy.released(node, step)
            case _:
                actions = tenancy.cleared()
        tenancy.validate()
        for action in actions:
            match action:
                case Grant(tenant):
                    assert not holder
                    assert open_questions.pop(tenant.node) == tenant.request
                    holder = tenant.node
                case Refuse(tenant):
                    assert open_questions.pop(tenant.node) == tenant.request
                case Clear(tenant):
                    assert tenant.node == holder
                    clearing = True
                case Drop(tenant):
                    assert clearing
                    assert tenant.node == holder
                    holder, clearing = "", False
                case EndSession():
                    pytest.fail("nobody has told it to end")
        assert tenancy.holder == ("" if clearing else holder)
