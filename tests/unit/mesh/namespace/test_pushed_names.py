"""What `push` and `scatter` had bound, for ranks that are restarted."""

from __future__ import annotations

import pytest

from monarch._src.mesh.namespace import pushed_names
from monarch._src.mesh.namespace.pushed_names import PushedNames
from monarch._src.wire.frames import Payload


def of(text: str) -> Payload:
    return Payload(text.encode())


def test_of_values_of_one_name_the_latest_of_each_rank_counts() -> None:
    names = PushedNames()
    names.bound("x", range(3), of("all"))
    names.bound("y", [0], of("first"))
    names.bound("x", [1], of("one"))
    assert [names.on(rank) for rank in range(4)] == [
        {"x": of("all"), "y": of("first")}, {"x": of("one")}, {"x": of("all")}, {},
    ]  # fmt: skip


def test_what_no_rank_has_any_more_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed_names, "MOST_KEPT", 10)
    names = PushedNames()
    names.bound("x", [0, 1], of("8 bytes."))
    names.bound("y", [0, 1], of("4 by"))
    assert names.on(0) == {"x": of("8 bytes."), "y": None}
    names.bound("x", [0, 1], of("2b"))
    names.bound("y", [0, 1], of("4 by"))
    assert names.on(1) == {"x": of("2b"), "y": of("4 by")}


def test_the_names_without_a_kept_value_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed_names, "MOST_KEPT", 10)
    names = PushedNames()
    names.bound("small", [0], of("8 bytes."))
    names.bound("large", [0, 1], of("4 by"))
    names.bound("remote", [0], None)
    assert names.why_not(0) == {
        "large": "too large to be kept", "remote": "with objects of the ranks",
    }  # fmt: skip
    assert names.why_not(1) == {"large": "too large to be kept"}
    names.bound("remote", [0], of("2b"))
    assert "remote" not in names.why_not(0)


def test_memory_that_may_change_is_copied() -> None:
    memory = bytearray(b"before")
    names = PushedNames()
    names.bound("x", [0], Payload(b"", [memoryview(memory)], loose=[0]))
    memory[:] = b"later!"
    kept = names.on(0)["x"]
    assert kept is not None
    assert [bytes(buffer) for buffer in kept.buffers] == [b"before"]  # pyright: ignore[reportArgumentType]
