"""Marks tell what caused a line, and are not part of it."""

from __future__ import annotations

import io
import os
import threading

from monarch._src.logs.line_origin import MARK, MarkedFile, OriginReader, without_marks


def test_a_line_has_the_origin_that_was_marked_last() -> None:
    reader = OriginReader()
    assert reader.read("a", "before any") == ("before any", 0)
    assert reader.read("a", f"{MARK % 3}one") == ("one", 3)
    assert reader.read("a", "two") == ("two", 3)
    assert reader.read("b", "another pipe") == ("another pipe", 0)
    assert reader.read("a", f"{MARK % 4}{MARK % 5}three") == ("three", 5)


def test_what_only_looks_like_a_mark_stays() -> None:
    for text in ("\x1e", "\x1emonarch-origin:\x1e", "\x1emonarch-origin:12", "monarch-origin:1"):
        assert OriginReader().read("a", text) == (text, 0)
        assert without_marks(text) == text


def test_writing_marks_once_and_again_when_the_origin_changes() -> None:
    reader, writer = os.pipe()
    now: list[int | None] = [1]
    with MarkedFile(writer, lambda: now[0]) as raw:
        text = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", line_buffering=True)
        print("a", file=text)
        print("b", file=text)
        now[0] = 2
        print("c", file=text)
        now[0] = None  # a thread that nobody knows
        thread = threading.Thread(target=print, args=("d",), kwargs={"file": text})
        thread.start()
        thread.join()
        text.detach().detach()
    os.close(writer)
    with open(reader) as pipe:
        assert pipe.read() == f"{MARK % 1}a\nb\n{MARK % 2}c\nd\n"


def test_half_a_line_is_of_who_has_written_it_and_ends_where_that_is_cut_off() -> None:
    reader, writer = os.pipe()
    now = 1
    with MarkedFile(writer, lambda: now) as raw:
        text = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", line_buffering=True)
        raw.mark(1)
        text.write("half")  # as a print that was interrupted before it wrote the end of its line
        now = 2  # who runs is another already
        raw.flushed(text.flush)
        raw.end_line()
        raw.end_line()  # it has none any more
        raw.mark(2)
        print("whole", file=text)
        text.detach().detach()
    os.close(writer)
    with open(reader) as pipe:
        said = pipe.read()
    lines = OriginReader()
    assert [lines.read("a", line) for line in said[:-1].split("\n")] == [("half", 1), ("whole", 2)]
