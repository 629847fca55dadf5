"""What ranks write arrives line by line, whole, wherever the reads of its pipe happen to end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.host.status_board import SLOT, Reads
from monarch._src.logs import pipe_reader as capture_module
from monarch._src.logs.line_origin import CUT, MARK
from monarch._src.logs.pipe_reader import LONGEST, STDERR, STDOUT, TAIL, Capture, Stream


@dataclass
class Piped:
    """A capture, and the writing ends of its pipes."""

    capture: Capture
    writers: dict[int, int]

    def write(self, stream: int, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        assert os.write(self.writers[stream], data) == len(data)

    def end(self, stream: int) -> None:
        os.close(self.writers.pop(stream))

    def close(self) -> None:
        self.capture.close()
        for stream in [*self.writers]:
            self.end(stream)


def pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    return reader, writer


@pytest.fixture
def piped() -> Iterator[Piped]:
    """Both pipes of a proc, open."""
    (out_r, out_w), (err_r, err_w) = pipe(), pipe()
    made = Piped(Capture(out_r, err_r), {STDOUT: out_w, STDERR: err_w})
    yield made
    made.close()


def test_lines_come_without_their_ends_and_with_the_stream_they_are_of(piped: Piped) -> None:
    piped.write(STDOUT, "one\ntwo\n")
    piped.write(STDERR, "oops\n")
    assert piped.capture.read_all() == [(STDOUT, "one"), (STDOUT, "two"), (STDERR, "oops")]
    assert piped.capture.read_all() == []


def test_a_line_waits_until_it_is_whole(piped: Piped) -> None:
    out = piped.capture.streams[0]
    piped.write(STDOUT, "first ha")
    assert piped.capture.read(out) == ([], False)
    piped.write(STDOUT, "lf\nsecond ")
    assert piped.capture.read(out) == ([(STDOUT, "first half")], False)
    piped.write(STDOUT, "half\n")
    assert piped.capture.read(out) == ([(STDOUT, "second half")], False)


def test_empty_lines_are_lines(piped: Piped) -> None:
    piped.write(STDOUT, "\n\na\n\n")
    assert [text for _, text in piped.capture.read_all()] == ["", "", "a", ""]


def test_a_last_line_without_an_end_comes_when_its_pipe_ends(piped: Piped) -> None:
    out = piped.capture.streams[0]
    piped.write(STDOUT, "last words")
    assert piped.capture.read(out) == ([], False)
    piped.end(STDOUT)
    assert piped.capture.read(out) == ([(STDOUT, "last words")], True)
    assert piped.capture.read(out) == ([], True)


def test_a_pipe_that_ends_after_a_whole_line_adds_none(piped: Piped) -> None:
    piped.write(STDOUT, "all\n")
    piped.end(STDOUT)
    assert piped.capture.read(piped.capture.streams[0]) == ([(STDOUT, "all")], True)


def test_a_character_that_is_cut_in_two_arrives_whole(piped: Piped) -> None:
    lines: list[tuple[int, str]] = []
    for byte in "größer\n".encode():
        piped.write(STDOUT, bytes([byte]))
        lines += piped.capture.read_all()
    assert lines == [(STDOUT, "größer")]


def test_bytes_that_are_no_text_are_marked_and_take_nothing_with_them(piped: Piped) -> None:
    piped.write(STDOUT, b"before \xff\xfe after\n")
    assert piped.capture.read_all() == [(STDOUT, "before �� after")]
    piped.write(STDOUT, b"half a character \xc3")
    piped.end(STDOUT)
    assert piped.capture.read_all() == [(STDOUT, "half a character �")]


def expected(text: str, longest: int) -> list[str]:
    """Lines, each cut into pieces of at most `longest`."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [
        piece
        for line in lines
        for piece in ([line[i : i + longest] for i in range(0, len(line), longest)] or [""])
    ]


@given(
    pieces=st.lists(st.text(alphabet="ab\nö€", max_size=20), max_size=6),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_however_it_is_cut_the_lines_are_the_same(pieces: list[str], cuts: list[int]) -> None:
    data, longest = "".join(pieces).encode(), 8
    reader, writer = pipe()
    stream = Stream(STDOUT, reader)
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_module, "LONGEST", longest)
        at = 0
        for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
            if cut > at:
                os.write(writer, data[at:cut])
            at = cut
            some, ended = stream.read()
            lines += some
            assert not ended
        os.close(writer)
        some, ended = stream.read()
    stream.close()
    assert ended
    assert lines + some == expected(data.decode(), longest)


@pytest.mark.parametrize("size", [LONGEST - 1, LONGEST, LONGEST + 1, 3 * LONGEST, 3 * LONGEST + 5])
def test_no_line_is_longer_than_64_kib(tmp_path: Path, size: int) -> None:
    (tmp_path / "out").write_text("x" * size + "\nnext\n")
    stream = Stream(STDOUT, os.open(tmp_path / "out", os.O_RDONLY))
    lines, ended = stream.read()
    stream.close()
    assert ended
    assert lines == expected("x" * size + "\nnext\n", LONGEST)


def test_a_flood_does_not_keep_the_reader_from_others(tmp_path: Path) -> None:
    text = "x" * 1023 + "\n"
    (tmp_path / "out").write_text(text * (9 << 10))
    stream = Stream(STDOUT, os.open(tmp_path / "out", os.O_RDONLY))
    counts: list[int] = []
    ended = False
    while not ended:
        lines, ended = stream.read()
        counts.append(len(lines))
    stream.close()
    assert sum(counts) == 9 << 10
    assert max(counts) <= 4 << 10, "at most 4 MiB at a time"


def test_the_last_lines_of_stderr_are_kept_for_the_report_of_a_death(piped: Piped) -> None:
    piped.write(STDOUT, "not this\n")
    for number in range(TAIL + 10):
        piped.write(STDERR, f"line {number}\n")
    piped.write(STDERR, "and the end")
    piped.end(STDERR)
    piped.capture.read_all()
    assert list(piped.capture.tail) == [
        *(f"line {number}" for number in range(11, TAIL + 10)),
        "and the end",
    ]


def test_closing_gives_both_pipes_back(piped: Piped) -> None:
    fds = [stream.fd for stream in piped.capture.streams]
    piped.capture.close()
    piped.capture.close()
    assert all(fd is not None and not os.path.exists(f"/proc/self/fd/{fd}") for fd in fds)
    assert piped.capture.read_all() == []


def test_a_line_that_is_written_over_is_one_line_and_seen_before_its_end(piped: Piped) -> None:
    out = piped.capture.streams[0]
    piped.write(STDOUT, "before\n\r 10%\r 20%")
    assert piped.capture.read_all() == [(STDOUT, "before")]
    assert out.unfinished == (3, " 20%")
    piped.write(STDOUT, "\r100%\n")
    assert piped.capture.read_all() == [(STDOUT, "\r 10%\r 20%\r100%")]
    assert out.unfinished is None


def test_a_bar_that_never_ends_its_line_is_still_one(piped: Piped) -> None:
    for number in range(3000):
        piped.write(STDOUT, f"\rstep {number:050d}")
        if number % 100 == 0:
            assert piped.capture.read_all() == []
    piped.end(STDOUT)
    ((_, line),) = piped.capture.read_all()
    assert line.endswith(f"\rstep {2999:050d}")
    assert len(line) <= LONGEST


def test_the_last_words_of_a_rank_have_no_marks(piped: Piped) -> None:
    piped.write(STDERR, f"{MARK % 7}first\n{MARK % 8}second\n")
    piped.capture.read_all()
    assert list(piped.capture.tail) == ["first", "second"]


def test_a_mark_behind_which_nothing_was_written_is_no_line(piped: Piped) -> None:
    piped.write(STDOUT, f"all\n{MARK % 7}")
    piped.end(STDOUT)
    assert piped.capture.read(piped.capture.streams[0]) == ([(STDOUT, "all")], True)


def test_a_line_that_is_begun_is_seen_before_its_end(piped: Piped) -> None:
    err = piped.capture.streams[1]
    piped.write(STDERR, "whole\n" + MARK % 7)
    piped.capture.read_all()
    assert err.unfinished is None
    piped.write(STDERR, "begun")
    piped.capture.read_all()
    assert err.unfinished == (6, f"{MARK % 7}begun")
    piped.write(STDERR, " and ended\n")
    assert piped.capture.read_all() == [(STDERR, f"{MARK % 7}begun and ended")]


@pytest.mark.parametrize(
    ("written", "lines", "rest"),
    [
        ("begun" + CUT, ["begun"], ""),
        ("begun" + CUT + CUT, ["begun"], ""),
        ("whole\n" + CUT, ["whole"], ""),
        (CUT, [], ""),
        (MARK % 3 + CUT, [], MARK % 3),
        (f"{MARK % 3}a{CUT}{MARK % 4}b{CUT}", [f"{MARK % 3}a", f"{MARK % 4}b"], ""),
        ("\r 10%" + CUT + "\r 20%", [], "\r 10%\r 20%"),
        ("\r 10%" + CUT, [], "\r 10%" + CUT),
        ("\r 10%" + CUT + CUT + "\r100%\nnext" + CUT, ["\r 10%\r100%", "next"], ""),
        ("\r 10%" + CUT + "\nnext", ["\r 10%"], "next"),
        ("\r 10%" + CUT + "next\n", ["\r 10%", "next"], ""),
        ("next\r" + CUT + "over\n", ["next\rover"], ""),
        ("\r|" + CUT + "\b/" + CUT, [], "\r|\b/" + CUT),
        (f"{MARK % 3}\r 10%{CUT}{MARK % 4}", [], f"{MARK % 3}\r 10%{CUT}{MARK % 4}"),
        (f"{MARK % 3}\r 10%{MARK % 4}\r 20%", [f"{MARK % 3}\r 10%"], f"{MARK % 4}\r 20%"),
        (f"{MARK % 3}a{MARK % 4}b\n", [f"{MARK % 3}a", f"{MARK % 4}b"], ""),
        (f"{MARK % 3}a{MARK % 4}{MARK % 3}b\n", [f"{MARK % 3}a{MARK % 3}b"], ""),
        (f"{MARK % 3}a\nb{MARK % 3}c\n", [f"{MARK % 3}a", f"b{MARK % 3}c"], ""),
        (f"\r 10%\r    \r{CUT}{MARK % 4}b\n", [f"{MARK % 4}b"], ""),
        ("\x1emonarch-", [], "\x1emonarch-"),
        ("\r\x1emonarch-", [], "\r\x1emonarch-"),
    ],
)
def test_an_answer_or_another_origin_ends_a_line_that_is_begun(
    piped: Piped, written: str, lines: list[str], rest: str
) -> None:
    for at in range(len(written)):  # wherever the reads happen to end
        found: list[str] = []
        for half in (written[:at], written[at:]):
            piped.write(STDOUT, half)
            found += [text for _, text in piped.capture.read_all()]
        assert found == lines
        assert piped.capture.streams[0].rest == rest
        piped.capture.streams[0].rest = ""
        piped.capture.streams[0].origin = 0


def test_a_state_tells_whether_its_rank_has_answered_and_is_one_line_in_the_end(
    piped: Piped,
) -> None:
    out = piped.capture.streams[0]
    for written, state in (
        (f"{MARK % 3}\r 10%", (3, f"{MARK % 3} 10%")),
        (CUT, (7, f"{MARK % 3} 10%")),
        ("\r 20%", (3, f"{MARK % 3} 20%")),
        (CUT + MARK % 4, (7, f"{MARK % 3} 20%")),
        ("\r 30%", (3, f"{MARK % 4} 30%")),
        ("\r    \r" + CUT, (7, MARK % 4)),
    ):
        piped.write(STDOUT, written)
        piped.capture.read_all()
        assert out.unfinished == state
    piped.end(STDOUT)
    assert piped.capture.read_all() == [], "nothing is left to see of it"


def test_all_that_is_read_is_counted_where_its_writer_sees_it() -> None:
    (out_r, out_w), (err_r, err_w) = pipe(), pipe()
    counts = memoryview(bytearray(SLOT)).cast("Q")
    piped = Piped(Capture(out_r, err_r, Reads(counts, 0)), {STDOUT: out_w, STDERR: err_w})
    piped.write(STDOUT, "12345")
    piped.write(STDERR, "678\n")
    piped.capture.read_all()
    assert counts[-1] >> 8 == 9
    piped.close()


def test_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x\n" * (1 << 17))
    stream = Stream(STDOUT, os.open(tmp_path / "out", os.O_RDONLY))
    assert len(stream.read(1)[0]) == 1 << 15, "one chunk of 64 KiB"
    stream.close()
