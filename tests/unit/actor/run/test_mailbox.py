"""The mailbox of an actor: in order, and done while it holds anything, whoever comes in between."""

from __future__ import annotations

import threading
from collections import deque

from monarch._src.actor.run.mailbox import Item, Mailbox, Stop


def items(number: int) -> list[Stop]:
    return [Stop(str(i)) for i in range(number)]


def test_items_come_out_in_the_order_in_which_they_were_put() -> None:
    mailbox, put = Mailbox(), items(3)
    for item in put:
        mailbox.put(item)
    assert [mailbox.take() for _ in range(4)] == [*put, None]


def test_it_is_done_while_it_holds_anything() -> None:
    mailbox = Mailbox()
    assert not mailbox.done
    for item in items(2):
        mailbox.put(item)
        assert mailbox.done
    mailbox.take()
    assert mailbox.done
    mailbox.take()
    assert not mailbox.done


def test_each_put_is_told() -> None:
    mailbox, told = Mailbox(), list[bool]()
    mailbox.on_put = lambda: told.append(mailbox.done)
    for item in items(2):
        mailbox.put(item)
    assert told == [True, True]


class TakenAtOnce(deque[Item]):
    """The actor's thread takes an item between its entry and the word that it came."""

    mailbox: Mailbox
    taken: Item | None = None

    def append(self, item: Item, /) -> None:
        super().append(item)
        self.taken = self.mailbox.take()


def test_an_item_taken_before_it_was_announced_leaves_no_wake_up_behind() -> None:
    mailbox = Mailbox()
    mailbox._items = between = TakenAtOnce()
    between.mailbox = mailbox
    (item,) = items(1)
    mailbox.put(item)
    assert between.taken is item
    assert mailbox.take() is None
    assert not mailbox.done, "an idle actor would look again and again for nothing"


class PutAtOnce(deque[Item]):
    """Another thread puts an item in the moment after the last one was taken."""

    mailbox: Mailbox
    late: list[Stop]

    def popleft(self) -> Item:
        item = super().popleft()
        while self.late:
            self.mailbox.put(self.late.pop())
        return item


def test_an_item_that_comes_while_the_last_one_is_taken_is_not_missed() -> None:
    mailbox = Mailbox()
    mailbox._items = between = PutAtOnce()
    between.mailbox = mailbox
    first, second = items(2)
    between.late = [second]
    mailbox.put(first)
    assert mailbox.take() is first
    assert mailbox.done
    assert mailbox.take() is second
    assert not mailbox.done


def test_no_item_is_lost_between_threads_and_it_ends_neither_done_nor_full() -> None:
    mailbox, put = Mailbox(), items(20_000)
    taken: list[Item] = []

    def take() -> None:
        while len(taken) < len(put):
            item = mailbox.take()
            if item is not None:
                taken.append(item)

    taker = threading.Thread(target=take)
    taker.start()
    for item in put:
        mailbox.put(item)
    taker.join(timeout=60)
    assert taken == put
    assert mailbox.take() is None
    assert not mailbox.done


def test_once_closed_it_is_done_for_good_and_still_gives_out_what_it_holds() -> None:
    mailbox, put = Mailbox(), items(2)
    for item in put:
        mailbox.put(item)
    mailbox.close()
    assert [mailbox.take() for _ in range(4)] == [*put, None, None]
    assert mailbox.done
    assert mailbox.closed


def test_its_close_is_told() -> None:
    mailbox, told = Mailbox(), list[bool]()
    mailbox.on_put = lambda: told.append(mailbox.closed and mailbox.done)
    mailbox.close()
    assert told == [True]


class ClosedMeanwhile(deque[Item]):
    """Another thread closes the mailbox while one finds out that it is empty."""

    mailbox: Mailbox
    asked = 0

    def __bool__(self) -> bool:
        self.asked += 1
        if self.asked == 1:
            self.mailbox.close()
        return len(self) > 0


def test_whoever_drains_it_while_it_is_closed_leaves_it_done() -> None:
    mailbox = Mailbox()
    mailbox._items = between = ClosedMeanwhile()
    between.mailbox = mailbox
    (item,) = items(1)
    between.append(item)
    assert mailbox.take() is item
    assert between.asked
    assert mailbox.done
