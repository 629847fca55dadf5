"""The terminal view by Textual's Pilot, and `monarch tui --diagnose` over real sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from monarch._src.admin.cluster_reader import ClusterReader, find_live
from monarch._src.admin.http_client import AdminClient
from monarch._src.admin.local_source import LocalSource
from monarch._src.admin.state.case_file import CaseFile
from monarch._src.admin.state.nodes import Cluster, HostSource, build
from monarch._src.admin.state.openapi import StacksAnswer
from monarch._src.admin.terminal_view import TerminalView
from monarch.actor import ProcMesh
from tests.integration.admin_server import admin_server, session_name
from tests.integration.commands import monarch
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper
from tests.unit.admin.state.test_nodes import HOST, actor, proc

pytestmark = pytest.mark.slow


class Recorded:
    """A source with a given cluster, which tests change."""

    def __init__(self, *procs: dict[str, Any]) -> None:
        self.number = 0
        self.procs = list(procs)
        self.problem = ""

    def cluster(self) -> Cluster:
        if self.problem:
            raise OSError(self.problem)
        self.number += 1
        tables = {"hosts": [HOST], "procs": self.procs, "actors": [actor(0)]}
        return build(self.number, 10, [HostSource("abc", "/run")], tables)

    def stacks(self, reference: str) -> StacksAnswer:
        return StacksAnswer(reference, "in step", [])

    def case(self) -> CaseFile:
        return CaseFile(1, "all is well", [], [], [], [], [], [], [], [], [])


def drive(source: Any, script: Callable[[TerminalView, Any], Coroutine[Any, Any, None]]) -> None:
    """Run the view without a terminal, and press the keys of a script."""

    async def main() -> None:
        view = TerminalView(source, refresh_s=3600.0)
        async with view.run_test(size=(120, 40)) as pilot:
            await settled(view, pilot)
            await script(view, pilot)

    asyncio.run(main())


async def settled(view: TerminalView, pilot: Any) -> None:
    """Wait until the open questions are answered and shown."""
    await view.workers.wait_for_complete()
    await pilot.pause()


def rows(view: TerminalView) -> list[str]:
    table = view._table
    return [str(table.get_row_at(at)[1]) for at in range(table.row_count)]


def text(view: TerminalView) -> str:
    return str(view.query_one("#text").render())


def test_keys_move_and_expand_and_collapse() -> None:
    async def script(view: TerminalView, pilot: Any) -> None:
        assert [row.strip() for row in rows(view)] == [
            "▾ 1 host, 3 procs, 1 actor; 1 failed proc",
            "▾ host here (session abc), 3 procs; 1 failed proc",
            "workers[gpus=2] pid 102 failed: killed by SIGKILL", "▸ workers[gpus=0] pid 100 idle",
            "workers[gpus=1] pid 101 idle",
        ]  # fmt: skip
        await pilot.press("j", "j", "j")
        assert view.selected == "proc:abc:1f:0"
        await pilot.press("tab")
        assert rows(view)[4].strip() == "trainer (train.Trainer) idle"
        await pilot.press("G")
        assert view.selected == "proc:abc:1f:1"
        await pilot.press("k")
        assert view.selected == "actor:abc:1f:0:2a"
        await pilot.press("g")
        assert view.selected == "root"
        await pilot.press("c")
        assert len(rows(view)) == 2

    drive(Recorded(proc(0), proc(1), proc(2, "failed", failure="killed by SIGKILL")), script)


def test_a_new_snapshot_keeps_the_cursor_on_its_node() -> None:
    source = Recorded(proc(0), proc(1))

    async def script(view: TerminalView, pilot: Any) -> None:
        await pilot.press("G")
        assert view.selected == "proc:abc:1f:1"
        source.procs = [proc(0), proc(1), proc(2, "failed")]
        await pilot.press("ctrl+l")
        await settled(view, pilot)
        assert view.selected == "proc:abc:1f:1"
        assert "failed" in rows(view)[2]
        source.procs[0] = proc(0, "busy")
        await pilot.press("ctrl+l")
        await settled(view, pilot)
        assert "busy" in rows(view)[3]
        assert "snapshot 3" in view.sub_title

    drive(source, script)


def test_a_source_that_fails_is_told_and_the_rows_stay() -> None:
    source = Recorded(proc(0))

    async def script(view: TerminalView, pilot: Any) -> None:
        source.problem = "no admin server answers"
        await pilot.press("ctrl+l")
        await settled(view, pilot)
        assert "no admin server answers" in view.sub_title
        assert len(rows(view)) == 3
        source.problem = ""
        await pilot.press("ctrl+l")
        await settled(view, pilot)
        assert "snapshot 2" in view.sub_title

    drive(source, script)


def test_a_search_filters_while_it_is_typed_and_escape_ends_it() -> None:
    async def script(view: TerminalView, pilot: Any) -> None:
        await pilot.press("slash", *"gpus=1")
        assert len(rows(view)) == 3
        await pilot.press("enter", "G")
        assert view.selected == "proc:abc:1f:1"
        await pilot.press("escape")
        assert len(rows(view)) == 4

    drive(Recorded(proc(0), proc(1)), script)


def test_stacks_and_the_case_file_are_shown_beside_the_tree() -> None:
    async def script(view: TerminalView, pilot: Any) -> None:
        await pilot.press("p")
        assert "move to a proc" in text(view)
        await pilot.press("G", "p")
        await settled(view, pilot)
        assert "proc:abc:1f:0: in step" in text(view)
        await pilot.press("d")
        await settled(view, pilot)
        assert "VERDICT  all is well" in text(view)
        await pilot.press("escape")
        assert text(view) == ""

    drive(Recorded(proc(0)), script)


def test_what_a_rank_writes_is_not_markup_and_no_command() -> None:
    async def script(view: TerminalView, pilot: Any) -> None:
        assert r"[bold]\x1b[2J" in rows(view)[2]

    drive(Recorded(proc(0, "failed", failure="[bold]\x1b[2J")), script)


def test_the_view_stays_live_at_a_thousand_ranks() -> None:
    async def script(view: TerminalView, pilot: Any) -> None:
        assert view._table.row_count == 1026
        await pilot.press("G")
        assert view.selected == "proc:abc:1f:1023"

    drive(Recorded(*(proc(rank) for rank in range(1024))), script)


def test_a_real_session_is_shown_with_the_stacks_of_a_rank(
    four: ProcMesh, gate: GateKeeper
) -> None:
    answer = four.spawn("holder", Faulty).slice(gpus=2).hold.call_one(gate.gate)
    gate.wait_entered()
    source = LocalSource(ClusterReader(lambda: find_live(None, [session_name()])))

    async def script(view: TerminalView, pilot: Any) -> None:
        places = [at for at, row in enumerate(rows(view)) if "workers[gpus=2]" in row]
        assert "Faulty.hold" in rows(view)[places[0]]
        view._table.move_cursor(row=places[0])
        await pilot.press("p")
        await settled(view, pilot)
        assert "in Faulty.hold" in text(view)

    drive(source, script)
    gate.open()
    answer.get(timeout=60)


def test_the_same_is_shown_through_an_admin_server(four: ProcMesh, tmp_path: Path) -> None:
    four.initialized.get()
    with admin_server(tmp_path, "--listen", "127.0.0.1:0") as server:
        over_http = AdminClient(server.url, server.tokens["observer"]).cluster()
        over_http.validate()
        own = LocalSource(ClusterReader(lambda: find_live(None, [session_name()]))).cluster()
        assert list(over_http.nodes) == list(own.nodes)
        status, out, err = monarch(
            "tui", "--addr", server.url, "--token-file", str(tmp_path / "admin-tokens.json"),
            "--diagnose", "--no-stacks",
        )  # fmt: skip
        assert (status, err) == (0, "")
        assert json.loads(out)["root"]["Root"]["num_procs"] >= 4
        status, _, err = monarch("tui", "--addr", server.url, "--diagnose")
        assert (status, "a token is needed; give --token-file" in err) == (1, True)


@pytest.mark.parametrize("address", ["ftp://x", "http://", "127.0.0.1:1"])
def test_an_address_without_a_server_is_one_clear_error(address: str) -> None:
    status, out, err = monarch("tui", "--addr", address, "--diagnose")
    assert (status, out) == (1, "")
    assert err.startswith("monarch tui: ")
    assert len(err.splitlines()) == 1
