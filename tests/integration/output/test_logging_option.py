"""`ProcMesh.logging_option`: what of a mesh is shown, when, and from which level."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, default_bootstrap_cmd, endpoint, this_host
from monarch.observe import OutputLine, flush_output, on_output
from tests.integration.programs import run
from tests.integration.sample_actors import Printer


class Logger(Actor):
    @endpoint
    def log(self, text: str) -> None:
        self.logger.debug("debug %s", text)
        self.logger.info("info %s", text)
        self.logger.warning("warning %s", text)


class Configures(Actor):
    """Logs as its user has configured it."""

    def __init__(self) -> None:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s of mine: %(message)s")

    @endpoint
    def log(self) -> None:
        self.logger.info("begun")
        self.logger.debug("unheard")


class Spawner(Actor):
    @endpoint
    async def spawn_and_ask(self) -> str:
        procs = this_host().spawn_procs()
        try:
            await procs.logging_option(stream_to_client=True)
        except ValueError as error:
            return str(error)
        finally:
            await procs.stop()
        return "taken"


@pytest.fixture
def heard() -> Iterator[list[OutputLine]]:
    lines: list[OutputLine] = []
    end = on_output(lines.extend)
    yield lines
    end()


@pytest.fixture
def two() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs({"gpus": 2})
    yield procs
    procs.stop().get()


def by_rank(line: OutputLine) -> int:
    return line.rank


def texts(lines: list[OutputLine]) -> set[tuple[int, str]]:
    return {(line.rank, line.text) for line in lines}


def test_records_of_a_level_are_logged_by_the_ranks_that_were_named(
    two: ProcMesh, heard: list[OutputLine]
) -> None:
    logger = two.spawn("logger", Logger)
    asyncio.run(two.slice(gpus=1).logging_option(stream_to_client=True, level=logging.INFO))
    logger.log.call("first").get()
    asyncio.run(two.logging_option(stream_to_client=True, level=logging.ERROR))
    logger.log.call("second").get()
    flush_output()
    assert [(line.rank, line.text) for line in sorted(heard, key=by_rank)] == [
        (0, f"{__name__}.Logger WARNING warning first"),
        (1, f"{__name__}.Logger INFO info first"),
        (1, f"{__name__}.Logger WARNING warning first"),
    ]


@pytest.mark.parametrize("own", [False, True], ids=["forked", "of a command"])
def test_a_program_configures_the_logging_of_its_ranks_as_anywhere(
    heard: list[OutputLine], own: bool
) -> None:
    procs = this_host().spawn_procs(
        {"gpus": 2}, bootstrap_command=default_bootstrap_cmd() if own else None
    )
    procs.spawn("configures", Configures).log.call().get()
    flush_output()
    assert texts(heard) == {(rank, "INFO of mine: begun") for rank in range(2)}
    procs.stop().get()


def test_what_is_not_to_be_shown_is_marked_and_kept(two: ProcMesh, heard: list[OutputLine]) -> None:
    asyncio.run(two.logging_option())
    two.spawn("printer", Printer).out.call("hidden").get()
    flush_output()
    assert {(line.text, line.shown) for line in heard} == {("hidden", False)}


def test_a_flush_waits_for_no_window(two: ProcMesh, heard: list[OutputLine]) -> None:
    asyncio.run(two.logging_option(stream_to_client=True, aggregate_window_sec=3600))
    two.spawn("printer", Printer).out.call("gathered").get()
    flush_output()
    assert texts(heard) == {(0, "gathered"), (1, "gathered")}


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"stream_to_client": 1}, TypeError, "True or False"),
        ({"level": "INFO"}, TypeError, "logging.INFO"),
        ({"stream_to_client": True, "aggregate_window_sec": "3"}, TypeError, "seconds or None"),
        ({"stream_to_client": True, "aggregate_window_sec": 0}, ValueError, "above 0"),
        ({"aggregate_window_sec": 3}, ValueError, "one or the other"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_change_nothing(
    two: ProcMesh,
    heard: list[OutputLine],
    arguments: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    with pytest.raises(error, match=says):
        asyncio.run(two.logging_option(**arguments))
    two.spawn("printer", Printer).slice(gpus=0).out.call_one("seen").get()
    flush_output()
    assert [(line.text, line.shown) for line in heard] == [("seen", True)]


def test_where_nobody_is_shown_anything_it_is_refused(two: ProcMesh) -> None:
    said = two.spawn("spawner", Spawner).slice(gpus=0).spawn_and_ask.call_one().get(timeout=60)
    assert "goes to the client" in said


PROGRAM = """
    import asyncio, sys
    from monarch.actor import Actor, endpoint, this_host

    class Speaker(Actor):
        @endpoint
        def say(self, text):
            print(text)

    async def main():
        procs = this_host().spawn_procs({"gpus": 3}, name="workers")
        speaker = procs.spawn("speaker", Speaker)
        await procs.logging_option(stream_to_client=True, aggregate_window_sec=float(sys.argv[1]))
        await speaker.say.call("the same")
        await speaker.slice(gpus=1).say.call("alone")
        await procs.logging_option()
        await speaker.say.call("never shown")

    asyncio.run(main())
"""


@pytest.mark.parametrize("window", ["0.01", "3600"])
def test_a_script_shows_equal_lines_of_a_window_once(tmp_path: Path, window: str) -> None:
    status, out, err = run(tmp_path, PROGRAM, window)
    assert (status, err) == (0, "")
    if window == "3600":
        assert out == "[workers 3 lines of 3 ranks] the same\n[workers gpus=1] alone\n"
    else:  # how many windows it takes is a matter of time
        assert "never" not in out
        assert out.endswith("[workers gpus=1] alone\n")
