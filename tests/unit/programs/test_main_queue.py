"""Which actors run on the main thread of a proc."""

from __future__ import annotations

from dataclasses import dataclass

from monarch._src.programs.main_queue import MainQueue


@dataclass
class Item:
    """An actor, by the part that the queue sees."""

    finalized: bool = False


def test_the_first_item_has_the_main_thread_until_it_ends() -> None:
    queue, first, second = MainQueue(), Item(), Item()
    assert queue.give(first)
    assert not queue.give(second)
    assert queue.take() is first
    assert not queue.give(second)
    queue.on_ended(first)
    assert queue.give(second)
    assert queue.take() is second
    assert queue.take() is None


def test_an_item_follows_one_whose_code_has_ended() -> None:
    queue, first, second, third = MainQueue(), Item(), Item(), Item()
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
