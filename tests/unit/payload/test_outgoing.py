"""Payloads for other hosts: how many bytes of them wait, by host."""

from __future__ import annotations

from monarch._src.payload.outgoing import OutgoingPayloads


def test_what_a_host_has_not_fetched_waits_and_what_was_taken_or_is_given_up_does_not() -> None:
    served = OutgoingPayloads()
    told: list[str] = []
    served.on_removed = told.append
    parts = [memoryview(bytes(10)), memoryview(bytes(5))]
    first = served.add("a", "host", 7, parts)
    served.add("b", "host", 7, parts)
    served.add("c", "other", 7, parts)
    assert (served.waits("host"), served.waits("other"), served.waits("none")) == (30, 15, 0)
    assert served.piece(7, first, 0, 0, 10) is not None
    assert served.waits("host") == 30  # it is on its way
    served.taken(8, first)  # of another payload
    assert (served.waits("host"), told) == (30, [])
    served.taken(7, first)
    assert (served.waits("host"), told) == (15, ["host"])
    served.gone("b")
    assert (served.waits("host"), told) == (0, ["host", "host"])
    assert served.waits("other") == 15
    served.clear()
    assert (served.waits("other"), bool(served)) == (0, False)
