"""`monarch logs`: the last lines of ranks, by rank, and further ones as they come."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import Actor, ProcMesh, current_rank, endpoint, shutdown_context
from tests.integration.commands import Commands

pytestmark = pytest.mark.slow
Spawn = Callable[..., ProcMesh]


class Talker(Actor):
    """Writes lines."""

    @endpoint
    def say(self, *texts: str) -> None:
        for text in texts:
            print(f"{text} of {current_rank().rank}")

    @endpoint
    def warn(self, text: str) -> None:
        print(text, file=sys.stderr)


@pytest.fixture
def shell(own_base_directory: Path) -> Commands:
    """The commands, for sessions of this test run."""
    shutdown_context()  # the tests before this one may have left one open
    return Commands(own_base_directory)


def lines(shell: Commands, *arguments: str) -> list[str]:
    status, out, err = shell("logs", *arguments)
    assert (status, err) == (0, "")
    return out.splitlines()


def test_lines_are_shown_with_their_rank_the_last_ones_first_chosen_by_slice(
    shell: Commands, spawn_procs: Spawn
) -> None:
    talkers = spawn_procs({"gpus": 4}, name="workers").spawn("talkers", Talker)
    talkers.say.call("step 1", "step 2").get()
    talkers.slice(gpus=2).warn.call("careful").get()
    expected = [f"[workers[gpus={r}]] step {n} of {r}" for r in range(4) for n in (1, 2)]
    assert sorted(lines(shell)) == sorted([*expected, "[workers[gpus=2]] careful"])
    assert lines(shell, "workers[gpus=2:4]", "--tail", "1") == ["[workers[gpus=2]] careful"]
    assert lines(shell, "workers[gpus=1]") == expected[2:4]
    assert sorted(lines(shell, "--grep", "step 2")) == expected[1::2]
    (line,) = [json.loads(one) for one in lines(shell, "--json", "--grep", "careful")]
    assert (line["mesh"], line["rank"], line["stream"], line["text"]) == (
        "workers", 2, "stderr", "careful",
    )  # fmt: skip


def test_the_lines_of_a_mesh_stay_when_it_has_ended(shell: Commands, spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 1}, name="over")
    procs.spawn("talkers", Talker).say.call("bye").get()
    procs.stop().get()
    assert lines(shell, "over") == ["[over[rank=0]] bye of 0"]


def test_what_selects_nothing_is_one_line(shell: Commands, spawn_procs: Spawn) -> None:
    spawn_procs({"gpus": 1}, name="workers").initialized.get()
    status, out, err = shell("logs", "nobody")
    assert (status, out) == (1, "")
    assert err == (
        "monarch logs: there is no session or mesh 'nobody'; meshes: workers (see `monarch ps`)\n"
    )
    status, out, err = shell("logs", "--grep", "(")
    assert (status, out) == (1, "")
    assert err.startswith("monarch logs: --grep ( is not a regular expression: ")
    assert shell("logs", "--tail", "few")[0] == 2


def test_following_shows_later_lines_until_the_session_ends(
    shell: Commands, spawn_procs: Spawn, own_base_directory: Path
) -> None:
    talkers = spawn_procs({"gpus": 1}, name="workers").spawn("talkers", Talker)
    talkers.say.call("first").get()
    command = [sys.executable, "-m", "monarch", "logs", "-f", "--in", str(own_base_directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "[workers[gpus=0]] first of 0\n"
        talkers.say.call("second", "third").get()
        assert following.stdout.readline() == "[workers[gpus=0]] second of 0\n"
        assert following.stdout.readline() == "[workers[gpus=0]] third of 0\n"
        shutdown_context()
        assert following.stdout.read() == ""
        assert following.wait(60) == 0
