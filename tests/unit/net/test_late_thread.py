"""A thread that nobody waits for as it starts, and that says itself who it is."""

from __future__ import annotations

import threading

import pytest

from monarch._src.net.late_thread import LateThread

PATIENCE_S = 60


def known() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_it_is_known_by_its_name_once_it_has_introduced_itself() -> None:
    introduces, introduced, ends = (threading.Event() for _ in range(3))

    def run() -> None:
        introduces.wait(PATIENCE_S)
        thread.introduce()
        introduced.set()
        ends.wait(PATIENCE_S)

    thread = LateThread(run, "late")
    assert not thread.is_alive()
    thread.start()
    assert thread.is_alive()
    assert "late" not in known()
    introduces.set()
    assert introduced.wait(PATIENCE_S)
    assert "late" in known()
    (found,) = (t for t in threading.enumerate() if t.name == "late")
    assert found.ident == thread.ident
    assert found.daemon
    ends.set()
    thread.join()
    assert not thread.is_alive()
    assert "late" not in known()


def test_join_waits_for_its_end() -> None:
    ends, ended = threading.Event(), list[bool]()

    def run() -> None:
        ends.wait(PATIENCE_S)
        ended.append(True)

    thread = LateThread(run, "late")
    thread.start()
    threading.Timer(0.01, ends.set).start()
    thread.join()
    assert ended == [True]


def test_where_no_thread_can_be_started_it_says_so_and_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("monarch._src.net.late_thread.start_new_thread", refuses)
    thread = LateThread(lambda: None, "late")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        thread.start()
    assert not thread.is_alive()
    thread.join()
