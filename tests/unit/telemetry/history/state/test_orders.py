"""A host keeps what its client orders, and more for the time of a profile."""

from __future__ import annotations

from monarch._src.telemetry.history.state.orders import NOTHING, Kept, Orders


def test_nothing_is_kept_without_an_order() -> None:
    orders = Orders()
    assert orders.in_force(0.0) == NOTHING
    assert orders.next_deadline() is None


def test_a_temporary_order_ends_by_itself() -> None:
    orders = Orders()
    orders.order_for(Kept(60.0, 100), 5.0, now=10.0)
    assert orders.in_force(14.9) == Kept(60.0, 100)
    assert orders.next_deadline() == 15.0
    assert orders.in_force(15.0) == NOTHING
    assert orders.next_deadline() is None


def test_the_end_of_a_temporary_order_leaves_the_lasting_one() -> None:
    orders = Orders()
    orders.order(Kept(3600.0, 10))
    orders.order_for(Kept(60.0, 100), 5.0, now=0.0)
    assert orders.in_force(1.0) == Kept(3600.0, 100)
    orders.order_for(NOTHING, -1.0, now=2.0)
    assert orders.in_force(2.0) == Kept(3600.0, 10)


def test_the_rows_of_an_order_that_was_taken_back_do_not_count() -> None:
    orders = Orders()
    orders.order(Kept(3600.0, 1000))
    orders.order(Kept(0.0, 1000))
    orders.order_for(Kept(60.0, 100), 5.0, now=0.0)
    assert orders.in_force(1.0) == Kept(60.0, 100)


def test_a_second_temporary_order_does_not_shorten_the_first() -> None:
    orders = Orders()
    orders.order_for(Kept(60.0, 100), 50.0, now=0.0)
    orders.order_for(Kept(60.0, 100), 5.0, now=1.0)
    assert orders.next_deadline() == 50.0


def test_the_profiler_of_torch_runs_for_the_time_of_a_temporary_order_only() -> None:
    orders = Orders()
    orders.order(Kept(3600.0, 10))
    orders.order_for(Kept(60.0, 100, torch=True), 50.0, now=0.0)
    assert orders.in_force(1.0) == Kept(3600.0, 100, torch=True)
    orders.order_for(Kept(60.0, 100), 50.0, now=2.0)
    assert orders.in_force(3.0) == Kept(3600.0, 100)
    orders.order_for(Kept(60.0, 100, torch=True), 5.0, now=4.0)
    assert orders.in_force(60.0) == Kept(3600.0, 10)
