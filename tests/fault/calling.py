"""What tests say to a client that has calls to two hosts on their way (`client_of_hosts`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.netns import Hosts, Program

PROGRAM = str(Path(__file__).with_name("client_of_hosts.py"))


@contextmanager
def calling(hosts: Hosts, number: int, *given: str) -> Iterator[Program]:
    """That client on a host, once calls to all ranks are on their way."""
    with hosts.program(number, PROGRAM, *given) as program:
        program.wait_for(lambda line: "pids" in line)
        for host in range(2):
            wait_for_progress(program, host)
        yield program


def wait_for_progress(program: Program, host: int) -> None:
    """Until calls to that host have been answered that had not been before."""
    program.wait_for(lambda line: "progress" in line and line["host"] == host)


def every_call_was_done_once_and_in_order(program: Program) -> None:
    """It makes no more calls, and those that it has made are as they should be."""
    program.tell("stop")
    for _ in range(4):
        end = program.wait_for(lambda line: "got" in line)
        assert end["in_order"]
        assert end["got"] == end["of"] > 0
    assert program.said("lost") == []


def cuts_that_are_mended_cost_nothing(
    hosts: Hosts, program: Program, numbers: Sequence[int]
) -> None:
    """One host after the other is cut off, and mended before anybody counts as lost."""
    program.tell("ask 0 1")
    first = program.wait_for(lambda line: "asked" in line)
    for number in numbers:
        hosts.cut(number)
        program.tell("ask 0 1")
        hosts.mend(number)
        assert program.wait_for(lambda line: "asked" in line) == first
        for host in range(2):
            wait_for_progress(program, host)
    every_call_was_done_once_and_in_order(program)
