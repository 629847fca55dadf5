"""Large `bytes` made of what others have: whole, however many copy."""

from __future__ import annotations

import hashlib
import os
import threading

import pytest

from monarch._src.wire import raw

SHARED = 3 << 21
SIZES = [1, raw._HUGE, SHARED - 1, SHARED, SHARED + 1, 2 * SHARED + 12_345]


@pytest.fixture(autouse=True)
def helped_with_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "_SHARED", SHARED)


def unlike(size: int) -> memoryview:
    """Bytes of which no stretch is like another."""
    return memoryview(hashlib.shake_128(b"seed").digest(size))


@pytest.mark.parametrize("cores", [1, 2, 3, 64])
def test_a_copy_is_what_was_shown_whoever_made_it(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    for size in SIZES:
        view = unlike(size)
        assert raw.bytes_of(view) == view


def test_where_no_thread_can_be_had_one_copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    view = unlike(SHARED + 1)
    assert raw.bytes_of(view) == view
