"""Which actors run on the main thread of a proc."""

from __future__ import annotations

from dataclasses import dataclass

from monarch._src.programs.proc import MainQueue


@dataclass(eq=False)
class Item:
    """An actor, by the part that the queue sees."""

    finalized: bool = False
    shares_main_thread: bool = False
    is_busy: bool = False


def sharing() -> Item:
    return Item(shares_main_thread=True)


def test_the_first_item_has_the_main_thread_until_it_ends() -> None:
    queue, first, second = MainQueue[Item](), Item(), Item()
    assert queue.give(first)
    assert not queue.give(second)
    assert queue.take() is first
    assert not queue.give(second)
    queue.on_ended(first)
    assert queue.give(second)
    assert queue.take() is second
    assert queue.take() is None


def test_an_item_follows_one_whose_code_has_ended() -> None:
    queue, first, second, third = MainQueue[Item](), Item(), Item(), Item()
    assert queue.give(first)
    assert queue.take() is first
    first.finalized = True  # it is told before the main thread has left it
    assert queue.give(second)
    assert not queue.give(third)
    queue.on_ended(first)
    assert not queue.give(third)
    assert queue.take() is second
    queue.on_ended(second)
    assert queue.give(third)


def test_items_that_share_the_thread_join_each_other_in_order() -> None:
    queue, first, second, third = MainQueue[Item](), sharing(), sharing(), sharing()
    assert queue.give(first)
    assert queue.take() is first
    assert queue.give(second)
    assert queue.give(third)
    assert (queue.take_shared(), queue.take_shared()) == (second, third)
    assert queue.take_shared() is None
    queue.on_ended(second)
    queue.on_ended(first)
    assert not queue.give(Item())
    queue.on_ended(third)
    assert queue.give(Item())


def test_no_item_joins_one_that_is_busy_or_that_does_not_share() -> None:
    queue, first, second = MainQueue[Item](), sharing(), sharing()
    assert queue.give(first)
    assert queue.take() is first
    first.is_busy = True
    assert not queue.give(second)
    first.is_busy = False
    assert not queue.give(Item())
    assert queue.give(second)
    alone = MainQueue[Item]()
    assert alone.give(Item())
    assert not alone.give(sharing())


def test_an_item_that_does_not_share_waits_until_the_others_have_left() -> None:
    queue, first, second, third = MainQueue[Item](), sharing(), Item(), sharing()
    assert queue.give(first)
    assert queue.take() is first
    first.finalized = True
    assert queue.give(second)
    assert queue.take_shared() is None
    assert not queue.give(third)
    queue.on_ended(first)
    assert queue.take() is second
