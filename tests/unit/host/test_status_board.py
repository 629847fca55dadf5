"""The status board: what ranks do, read from outside, whole, whatever happens to who writes it."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch._src.host import status_board as board_module
from monarch._src.host.status_board import BUSY, IDLE, LEFT, NONE, SLOT, Board, Slot, Status

RANKS = 3


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board(tmp_path / "5.board", RANKS)
    yield made
    made.close()


def slot(board: Board, rank: int = 1) -> Slot:
    return Slot(str(board.path), rank)


def shown(status: Status) -> tuple[int, int, int, str, str]:
    return status.state, status.running, status.messages, status.actor, status.endpoint


def test_a_rank_that_has_written_nothing_does_nothing(board: Board) -> None:
    assert shown(board.read(1)) == (NONE, 0, 0, "", "")
    assert board.read(1).since_s == 0.0


def test_a_rank_is_idle_busy_and_idle_again(board: Board) -> None:
    writer = slot(board)
    writer.idle()
    assert shown(board.read(1)) == (IDLE, 0, 0, "", "")
    running = writer.begin(b"Trainer", b"step")
    assert shown(board.read(1)) == (BUSY, 1, 1, "Trainer", "step")
    writer.end(running)
    assert shown(board.read(1)) == (IDLE, 0, 1, "", "")
    writer.leave()
    assert board.read(1).state == LEFT


def test_of_endpoints_that_overlap_the_one_that_began_last_and_still_runs_is_shown(
    board: Board,
) -> None:
    writer = slot(board)
    first, second, third = (writer.begin(b"A", name) for name in (b"first", b"second", b"third"))
    assert shown(board.read(1)) == (BUSY, 3, 3, "A", "third")
    writer.end(second)
    assert shown(board.read(1)) == (BUSY, 2, 3, "A", "third")
    writer.end(third)
    assert shown(board.read(1)) == (BUSY, 1, 3, "A", "first")
    writer.end(first)
    assert shown(board.read(1)) == (IDLE, 0, 3, "", "")


def test_what_is_no_message_is_shown_and_not_counted(board: Board) -> None:
    writer = slot(board)
    writer.end(writer.prepare(b"bootstrap"))
    preparing = writer.prepare(b"bootstrap")
    assert shown(board.read(1)) == (BUSY, 1, 0, "", "bootstrap")
    writer.end(preparing)


def test_the_time_is_that_of_the_last_change(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100_000_000_000
    monkeypatch.setattr(board_module, "monotonic_ns", lambda: now)
    writer = slot(board)
    running = writer.begin(b"A", b"work")
    now += 7_500_000_000
    assert board.read(1).since_s == 7.5
    assert writer.end(running) == 7_500_000_000
    assert board.read(1).since_s == 0.0
    now -= 8_000_000_000
    assert board.read(1).since_s == 0.0, "never negative"


def test_busy_is_the_time_in_which_anything_ran_up_to_now(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 5_000_000_000

    def passes(seconds: float) -> None:
        nonlocal now
        now += int(seconds * 1e9)

    monkeypatch.setattr(board_module, "monotonic_ns", lambda: now)
    writer = slot(board)
    writer.idle()
    passes(3)
    assert board.read(1).busy_s == 0
    first = writer.begin(b"A", b"first")
    passes(1)
    assert board.read(1).busy_s == 1, "while it runs"
    second = writer.begin(b"A", b"second")
    passes(2)
    assert board.read(1).busy_s == 3, "those that overlap count once"
    writer.end(first)
    passes(4)
    assert board.read(1).busy_s == 7
    writer.end(second)
    passes(10)
    assert board.read(1).busy_s == 7
    writer.end(writer.begin(b"A", b"third"))
    writer.leave()
    assert board.read(1).busy_s == 7


def test_what_failed_is_counted_and_changes_nothing_else(board: Board) -> None:
    writer = slot(board)
    running = writer.begin(b"A", b"outer")
    writer.end(writer.begin(b"A", b"inner"))
    writer.failed()
    assert (board.read(1).errors, shown(board.read(1))) == (1, (BUSY, 1, 2, "A", "outer"))
    writer.end(running)
    assert board.read(1).errors == 1
    writer.failed()
    assert (board.read(1).errors, shown(board.read(1))) == (2, (IDLE, 0, 2, "", ""))


def test_each_rank_has_a_slot_of_its_own(board: Board) -> None:
    for rank in range(RANKS):
        slot(board, rank).begin(b"A" * 40, b"%d" % rank * 60)
    for rank in range(RANKS):
        assert shown(board.read(rank)) == (BUSY, 1, 1, "A" * 32, str(rank) * 48)


def test_names_that_are_too_long_are_cut_also_in_a_character(board: Board) -> None:
    slot(board).begin("ö".encode() * 30, b"x" + "ö".encode() * 30)
    read = board.read(1)
    assert read.actor == "ö" * 16
    assert read.endpoint == "x" + "ö" * 23 + "�"


def test_any_number_of_writes_reads_right(board: Board) -> None:
    writer = slot(board)
    for number in range(1, 600):
        writer.end(writer.begin(b"A", b"e"))
        assert shown(board.read(1)) == (IDLE, 0, number, "", "")


def test_a_proc_without_a_board_writes_nowhere() -> None:
    writer = Slot(None, 0)
    writer.idle()
    writer.end(writer.begin(b"A", b"e"))


def test_the_file_is_the_users_alone_new_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "5.board"
    board = Board(path, RANKS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size == RANKS * SLOT
    with pytest.raises(FileExistsError):
        Board(path, RANKS)
    board.close()
    assert not path.exists()


# --- other processes ------------------------------------------------------------------------------

DIES_BUSY = """
import os, sys
from monarch._src.host.status_board import Slot
Slot(sys.argv[1], 1).begin(b"Trainer", b"step")
os._exit(0)
"""


def test_the_slot_of_a_dead_proc_says_what_it_died_in(
    board: Board, run_python: Callable[..., str]
) -> None:
    run_python(DIES_BUSY, str(board.path))
    assert shown(board.read(1)) == (BUSY, 1, 1, "Trainer", "step")


def test_a_write_that_was_never_finished_is_not_read(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = slot(board)
    running = writer.begin(b"Trainer", b"step")
    before = shown(board.read(1))

    class Stopped(Exception):
        pass

    class HalfWritten:
        size = board_module._FORMAT.size
        unpack = board_module._FORMAT.unpack

        @staticmethod
        def pack_into(buffer: bytearray, at: int, *values: object) -> None:
            buffer[at : at + 40] = b"\xff" * 40
            raise Stopped

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(board_module, "_FORMAT", HalfWritten)
            with pytest.raises(Stopped):
                writer.begin(b"Other", b"other")
        assert shown(board.read(1)) == before
        writer._writes -= 1  # as it would stand, had the process ended there
    del running


WRITES_ON_AND_ON = """
import sys
from monarch._src.host.status_board import Slot
slot = Slot(sys.argv[1], 1)
running = slot.begin(b"a" * 32, b"a" * 48)
print("up", flush=True)
while True:
    for name in (b"a", b"b"):
        slot.end(slot.begin(name * 32, name * 48))
"""


def test_what_is_read_was_written_at_once_while_a_rank_writes_on_and_on(
    board: Board, python_program: Callable[..., subprocess.Popen[str]]
) -> None:
    seen: set[tuple[int, int, str, str]] = set()
    writer = python_program(WRITES_ON_AND_ON, str(board.path))
    assert writer.stdout is not None
    assert writer.stdout.readline() == "up\n"
    looks = 0
    while looks < 20_000 or len(seen) < 3:
        read = board.read(1)
        seen.add((read.state, read.running, read.actor, read.endpoint))
        looks += 1
    a, b = ("a" * 32, "a" * 48), ("b" * 32, "b" * 48)
    assert seen == {(BUSY, 1, *a), (BUSY, 2, *a), (BUSY, 2, *b)}


def reserves_nothing(monkeypatch: pytest.MonkeyPatch, why: int) -> None:
    """To reserve room in a file fails, with that errno."""

    def fails(fd: int, offset: int, size: int) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(os, "posix_fallocate", fails, raising=False)


def test_where_there_is_no_room_for_it_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserves_nothing(monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        Board(tmp_path / "5.board", RANKS)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_reserve_room_is_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserves_nothing(monkeypatch, errno.EOPNOTSUPP)
    board = Board(tmp_path / "5.board", RANKS)
    slot(board).idle()
    assert board.read(1).state == IDLE
    board.close()


def test_one_without_a_file_is_that_of_a_mesh_without_processes() -> None:
    board = Board(None, RANKS)
    assert [board.read(rank).state for rank in range(RANKS)] == [NONE] * RANKS
    board.clear(1)
    board.close()
