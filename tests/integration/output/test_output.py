"""What ranks print arrives whole, tagged with its rank, before `flush_output` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch.actor import ProcMesh
from monarch.observe import OutputLine, flush_output, on_output
from tests.integration.gates import GateKeeper
from tests.integration.programs import run
from tests.integration.sample_actors import Printer

Spawn = Callable[..., ProcMesh]


@pytest.fixture
def heard() -> Iterator[list[OutputLine]]:
    """Every line since the test began."""
    lines: list[OutputLine] = []
    end = on_output(lines.extend)
    yield lines
    end()


def test_a_line_is_tagged_with_mesh_rank_point_and_stream(
    grid: ProcMesh, heard: list[OutputLine]
) -> None:
    printer = grid.spawn("printer", Printer)
    printer.slice(hosts=1, gpus=2).out.call_one("hello").get()
    printer.slice(hosts=0, gpus=1).err.call_one("oh").get()
    flush_output()
    point_5, point_1 = {"hosts": 1, "gpus": 2}, {"hosts": 0, "gpus": 1}
    assert sorted(heard, key=lambda line: line.rank) == [
        OutputLine("grid", grid.uid, 1, point_1, "stderr", "oh"),
        OutputLine("grid", grid.uid, 5, point_5, "stdout", "hello"),
    ]


def test_all_that_was_printed_before_the_answer_is_there_after_a_flush(
    four: ProcMesh, heard: list[OutputLine]
) -> None:
    printer = four.spawn("printer", Printer)
    for _ in range(5):
        printer.many.call(400).get()
        flush_output()
        for rank in range(4):
            texts = [line.text for line in heard if line.rank == rank]
            assert texts == [f"line {number} of {rank}" for number in range(400)]
        heard.clear()


def test_what_is_printed_in_an_endpoint_that_still_runs_is_shown(
    four: ProcMesh, heard: list[OutputLine], gate: GateKeeper
) -> None:
    answer = (
        four.spawn("printer", Printer).slice(gpus=0).print_and_pass.call_one("still", gate.gate)
    )
    gate.wait_entered()
    flush_output()
    assert [line.text for line in heard] == ["still"]
    gate.open()
    answer.get()


def test_lines_keep_their_order_within_a_stream_whatever_is_in_them(
    four: ProcMesh, heard: list[OutputLine]
) -> None:
    printer = four.slice(gpus=0).spawn("printer", Printer)
    lines = [
        "",
        "  blanks  ",
        "\N{SNOWMAN} and \N{GRINNING FACE}",
        "tab\tand\rreturn",
        "x" * 30_000,
    ]
    printer.out.call_one(*lines).get()
    printer.raw.call_one(b"bytes \xff that are no text\nand", b" a line in two writes\n").get()
    flush_output()
    assert [line.text for line in heard] == [
        *lines,
        "bytes \N{REPLACEMENT CHARACTER} that are no text",
        "and a line in two writes",
    ]


def test_a_line_longer_than_any_pipe_arrives_whole(four: ProcMesh, heard: list[OutputLine]) -> None:
    printer = four.slice(gpus=0).spawn("printer", Printer)
    printer.out.call_one("y" * 1_000_000, "next").get()
    flush_output()
    assert "".join(line.text for line in heard[:-1]) == "y" * 1_000_000
    assert heard[-1].text == "next"


def test_the_last_words_of_a_mesh_that_stops_are_heard(
    spawn_procs: Spawn, heard: list[OutputLine]
) -> None:
    procs = spawn_procs({"gpus": 2})
    procs.spawn("printer", Printer).many.broadcast(300)
    procs.stop().get(timeout=60)
    for rank in range(2):
        texts = [line.text for line in heard if line.rank == rank]
        assert texts == [f"line {number} of {rank}" for number in range(300)]


def test_what_a_preload_prints_is_not_said_again_by_each_process(
    spawn_procs: Spawn,
    heard: list[OutputLine],
    agent_errors: Callable[[], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "prints_on_import.py").write_text(
        "import io, sys\n"
        "print('half a line,', end=' ')\n"
        "print('and one of errors', end=' ', file=sys.stderr)\n"
        "sys.stdout = io.StringIO()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    procs = spawn_procs({"gpus": 2}, preload=["prints_on_import"])
    procs.spawn("printer", Printer).out.call("of its own").get()
    flush_output()
    assert [(line.stream, line.text) for line in heard] == 2 * [("stdout", "of its own")]
    assert agent_errors() == ["half a line, and one of errors "]  # the log of the host agent has it


def test_a_listener_that_has_ended_hears_nothing(four: ProcMesh) -> None:
    lines: list[OutputLine] = []
    end = on_output(lines.extend)
    printer = four.slice(gpus=0).spawn("printer", Printer)
    printer.out.call_one("before").get()
    flush_output()
    end()
    end()
    printer.out.call_one("after").get()
    flush_output()
    assert [line.text for line in lines] == ["before"]


PRINTING = """
    import sys
    from monarch.actor import Actor, endpoint, this_host
    from monarch.config import configure

    class Printer(Actor):
        @endpoint
        def say(self):
            print("to stdout")
            print("to stderr", file=sys.stderr)

    configure(enable_log_forwarding=sys.argv[1] == "yes")
    this_host().spawn_procs({"gpus": 2}, name="mesh").spawn("p", Printer).say.call().get()
    this_host().spawn_procs(name="single").spawn("p", Printer).say.call_one().get()
"""


def test_a_script_shows_what_its_ranks_print_tagged_and_on_the_same_stream(tmp_path: Path) -> None:
    status, out, err = run(tmp_path, PRINTING, "yes")
    assert status == 0
    tags = ["[mesh gpus=0]", "[mesh gpus=1]", "[single]"]
    assert sorted(out.splitlines()) == [f"{tag} to stdout" for tag in tags]
    assert sorted(err.splitlines()) == [f"{tag} to stderr" for tag in tags]


def test_forwarding_can_be_switched_off(tmp_path: Path) -> None:
    assert run(tmp_path, PRINTING, "no") == (0, "", "")
