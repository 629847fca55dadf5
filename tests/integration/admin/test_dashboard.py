"""The server of the dashboard over real sockets: live sessions, a recording, strangers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from monarch.actor import Actor, ProcMesh, endpoint, this_host
from monarch.observe import dashboard, query_file, record, record_to
from tests.conftest import Faults
from tests.integration.admin_server import (
    ACTIONS,
    PATIENCE_S,
    AdminProcess,
    Answer,
    dashboard_server,
)
from tests.integration.commands import monarch
from tests.integration.failing_actors import Faulty
from tests.integration.gates import Gate, GateKeeper, gate_in, write_byte

pytestmark = pytest.mark.slow
JSON = {"Content-Type": "application/json"}


class Sayer(Actor):
    """Writes lines."""

    @endpoint
    def say(self, text: str) -> None:
        print(text)
        self.said = text


class Page:
    """Requests as the page in a browser makes them."""

    def __init__(self, server: AdminProcess, token: str) -> None:
        self.server = server
        answer = server.get(f"/dashboard/?token={quote(server.tokens.get(token, token))}")
        assert (answer.status, answer.headers["location"]) == (303, "./")
        self._cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}

    def get(self, path: str) -> Answer:
        return self.server.request("GET", f"/dashboard/{path}", headers=self._cookie)

    def state(self, at: float | None = None) -> dict[str, Any]:
        answer = self.get("state" if at is None else f"state?at={at}")
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json
        return found

    def post(self, path: str, body: object, headers: dict[str, str] = JSON) -> Answer:
        return self.server.request(
            "POST", f"/dashboard/{path}", body, headers={**self._cookie, **headers}
        )

    def ask(self, do: str, at: float | None = None, **fields: Any) -> Any:
        answer = self.post("ask" if at is None else f"ask?at={at}", {"do": do, **fields})
        assert answer.status == 200, answer.body
        return answer.json


@pytest.fixture(scope="module")
def page(tcp_admin: AdminProcess) -> Page:
    return Page(tcp_admin, "observer")


def mesh_of(state: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in state["meshes"] if one["name"] == name]
    return found


# --- live sessions --------------------------------------------------------------------------------


def test_the_state_has_the_meshes_of_the_session(
    page: Page, four: ProcMesh, gate: GateKeeper
) -> None:
    held = four.spawn("holder", Faulty).slice(gpus=2).hold.call_one(gate.gate)
    gate.wait_entered()
    state = page.state()
    gate.open()
    held.get()
    mesh = mesh_of(state, "workers")
    assert (mesh["uid"], mesh["sizes"], mesh["state"]) == (four.uid, {"gpus": 4}, "ready")
    assert [row["state"] for row in mesh["rows"]] == ["idle", "idle", "busy", "idle"]
    assert (mesh["rows"][2]["endpoint"], state["span"], state["missing"]) == ("hold", None, [])
    assert {"lines", "stacks", "timeline"} <= set(state["offered"])
    assert "kill" not in state["offered"]


def test_views_get_lines_stacks_actors_usage_and_calls(page: Page, four: ProcMesh) -> None:
    record()
    sayer = four.spawn("sayer", Sayer)
    sayer.say.call("hello, page").get()
    lines = page.ask("lines", grep="hello, page")
    assert [(one["points"], one["text"]) for one in lines["folds"]] == [
        ("gpus=0..3", "hello, page")
    ]
    actors = page.ask("actors", mesh=four.uid, ranks=[1])["actors"]
    (said,) = [one for one in actors if one["name"] == "sayer"]
    assert said["attributes"] == [["said", "'hello, page'"]]
    page.state()
    usage = page.ask("usage", mesh=four.uid)
    assert len(usage["samples"][-1]["memory"]) == 4
    timeline = page.ask("timeline", mesh=four.uid)
    assert "sayer.say" in timeline["names"]
    assert {call[0] for call in timeline["calls"]} == {0, 1, 2, 3}
    record(0)


def test_sql_and_the_case_file_are_those_of_the_session(page: Page) -> None:
    sql = "SELECT rank FROM procs WHERE mesh = 'workers' ORDER BY rank"
    found = page.post("query", {"sql": sql}).json
    assert [row["rank"] for row in found["rows"]] == [0, 1, 2, 3]
    refused = page.post("query", {"sql": "COPY procs TO '/tmp/x'"})
    assert (refused.status, refused.error[0]) == (400, "bad_request")
    assert page.get("explain").json["text"].startswith("VERDICT")


def test_an_owner_may_kill_ranks_and_an_observer_not(
    tcp_admin: AdminProcess, page: Page, faults: Faults
) -> None:
    mesh = this_host().spawn_procs({"gpus": 2}, name="failing")
    mesh.initialized.get()
    kill = {"do": "kill", "mesh": mesh.uid, "ranks": [1]}
    assert page.post("ask", kill).status == 403
    owner = Page(tcp_admin, "owner")
    assert "kill" in owner.state()["offered"]
    assert owner.post("ask", kill).status == 200
    faults.take_ranks({1})
    assert owner.post("ask", kill).status == 409
    assert owner.post("ask", {**kill, "ranks": [7]}).status == 404
    mesh.stop().get()


class Adder(Actor):
    """Pauses at a breakpoint, or holds."""

    @endpoint
    def pause(self, amount: int) -> int:
        doubled = amount * 2
        breakpoint()
        return doubled

    @endpoint
    def spin(self, gate: Gate) -> int:
        write_byte(gate.entered)
        turns = 0
        while turns >= 0:
            turns += 1
        return turns


def until_paused(page: Page, name: str, ranks: list[int]) -> None:
    """Read the state until exactly these ranks of that mesh are paused."""
    found: list[int] = []
    while found != ranks:
        rows = mesh_of(page.state(), name)["rows"]
        found = [row["rank"] for row in rows if row["state"] == "paused"]


def test_an_owner_debugs_paused_ranks_and_an_observer_sees_them(
    tcp_admin: AdminProcess, page: Page, four: ProcMesh
) -> None:
    owner = Page(tcp_admin, "owner")
    assert not {"console", "say", "resume"} & set(page.state()["offered"])
    assert {"console", "say", "resume"} <= set(owner.state()["offered"])
    paused = four.spawn("adder", Adder).slice(gpus=slice(1, None, 2)).pause.call(21)
    until_paused(page, "workers", [1, 3])
    row = mesh_of(page.state(), "workers")["rows"][3]
    assert "Adder.pause" in row["where"]
    resume = {"do": "resume", "mesh": four.uid, "ranks": [1, 3]}
    for refused in (
        {"do": "console", "mesh": four.uid, "ranks": [3]},
        {"do": "say", "console": 1, "text": "p 1"},
        {"do": "standing", "console": 1},
        resume,
    ):
        assert page.post("ask", refused).status == 403
    opened = owner.ask("console", mesh=four.uid, ranks=[3])
    number = opened["console"]
    assert opened["title"].startswith("workers[gpus=3] in Adder.pause (test_dashboard.py:")
    assert (opened["prompt"], opened["over"]) == ("(Pdb) ", False)
    assert any("breakpoint()" in line for line in opened["source"]["lines"])
    assert owner.ask("say", console=number, text="p doubled")["text"] == "42"
    assert owner.ask("complete", console=number, text="p dou")["matches"] == ["doubled"]
    held = owner.post("ask", {"do": "console", "mesh": four.uid, "ranks": [3]})
    assert held.status == 409
    owner.ask("say", console=number, text="doubled = 7")
    assert owner.ask("standing", console=number)["over"] is False
    ended = owner.ask("say", console=number, text="continue")
    assert (ended["over"], ended["note"]) == (True, "workers[gpus=3] has gone on")
    assert owner.ask("standing", console=number)["note"] == ended["note"]
    closed = owner.post("ask", {"do": "say", "console": number, "text": "p 1"})
    assert closed.error == ("conflict", "this console is closed; open another one")
    until_paused(page, "workers", [1])
    assert owner.post("ask", resume).json == "1 thread goes on"
    assert list(paused.get().values()) == [42, 7]
    assert owner.post("ask", resume).status == 409
    logged = [json.loads(line) for line in (tcp_admin.folder / ACTIONS).read_text().splitlines()]
    assert ("debug command", f"console {number}: p doubled") in [
        (one["action"], one["target"]) for one in logged
    ]


def test_a_page_closes_a_console_and_its_rank_stays_paused(
    tcp_admin: AdminProcess, page: Page, four: ProcMesh
) -> None:
    owner = Page(tcp_admin, "owner")
    paused = four.spawn("adder", Adder).slice(gpus=0).pause.call_one(1)
    until_paused(page, "workers", [0])
    first = owner.ask("console", mesh=four.uid, ranks=[0])["console"]
    assert owner.ask("let_go", console=first) is None
    until_paused(page, "workers", [0])
    second = owner.ask("console", mesh=four.uid, ranks=[0])["console"]
    assert owner.ask("say", console=second, text="continue")["over"]
    assert paused.get() == 2


def test_a_console_pauses_a_rank_that_runs(tcp_admin: AdminProcess, gate: GateKeeper) -> None:
    owner = Page(tcp_admin, "owner")
    mesh = this_host().spawn_procs({"gpus": 2}, name="spinners")
    adder = mesh.spawn("adder", Adder)
    adder.initialized.get()
    nothing = owner.post("ask", {"do": "console", "mesh": mesh.uid, "ranks": [1]})
    assert nothing.status == 409
    assert nothing.error[1] == "no endpoint is running there"
    spinning = adder.slice(gpus=1).spin.call_one(gate.gate)
    gate.wait_entered()
    console = owner.ask("console", mesh=mesh.uid, ranks=[1])["console"]
    owner.ask("say", console=console, text="turns = -5")
    assert owner.ask("say", console=console, text="continue")["over"]
    assert spinning.get() in (-5, -4)
    mesh.stop().get()


# --- strangers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "state", "dashboard.js", "explain", "?token=wrong"])
def test_a_stranger_gets_nothing(tcp_admin: AdminProcess, path: str) -> None:
    answer = tcp_admin.get(f"/dashboard/{path}")
    assert answer.status == 401
    assert b"<" not in answer.body


def test_the_cookie_opens_the_dashboard_only(tcp_admin: AdminProcess, page: Page) -> None:
    answer = tcp_admin.request("GET", "/v1/root", headers=page._cookie)  # pyright: ignore[reportPrivateUsage]
    assert answer.status == 401


def test_a_question_of_another_site_is_refused(page: Page) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert page.post("ask", {"do": "lines"}, {"Content-Type": kind}).status == 415
        assert page.post("query", {"sql": "SELECT 1"}, {"Content-Type": kind}).status == 415


def test_the_page_loads_its_own_files_and_no_others(page: Page) -> None:
    html = page.get("")
    assert "default-src 'none'" in html.headers["content-security-policy"]
    pending, seen = ["dashboard_page.js", "dashboard.css"], set[str]()
    assert all(name in html.body.decode() for name in pending)
    while pending:
        name = pending.pop()
        seen.add(name)
        answer = page.get(name)
        assert answer.status == 200, name
        imported = re.findall(r'from "\./([\w.]+)"', answer.body.decode())
        pending += [one for one in imported if one not in seen]
    assert "explorer.js" in seen
    for name in ("../app.py", "%2e%2e%2fapp.py", "app.py", "nothing.js", "a.js%00"):
        assert page.get(name).status == 404, name


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"no json", "the dashboard answers lines"),
        ({"do": "restart"}, "the dashboard answers lines"),
        ({"do": "stacks", "mesh": "xyz", "ranks": [0]}, "is no uid of a mesh"),
        ({"do": "stacks", "mesh": "1", "ranks": []}, "names no rank"),
        ({"do": "lines", "grep": "("}, "not a regular expression"),
    ],
)
def test_what_is_no_question_is_refused(page: Page, body: object, why: str) -> None:
    answer = page.post("ask", body)
    assert answer.status == 400
    assert why in answer.error[1]


def test_live_sessions_have_no_other_time(page: Page) -> None:
    for path, why in (("state?at=1", "only a recording"), ("state?at=x", "give seconds")):
        answer = page.get(path)
        assert answer.status == 400
        assert why in answer.error[1]


# --- from a program -------------------------------------------------------------------------------


def test_a_program_gets_the_address_of_its_page(four: ProcMesh) -> None:
    found = dashboard()
    assert found.dashboard_url is not None
    assert found.dashboard_url.startswith(f"{found.url}/dashboard/?token=")
    assert dashboard().dashboard_url == found.dashboard_url
    root: dict[str, Any] = found.get("/v1/root")
    assert root["identity"] == "root"


# --- a recording ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recording(
    four: ProcMesh, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Page, float, Path]]:
    """A page of a recording, and a time at which a call ran that has ended since."""
    folder = tmp_path_factory.mktemp("recorded")
    path = folder / "run.duckdb"
    holder = four.spawn("recorded", Faulty)
    sayer = four.spawn("recorded_sayer", Sayer)
    sayer.say.call("before").get()
    record()
    with gate_in(folder) as gate, record_to(path, 0.05) as sampling:
        assert sampling.wait_for(1, PATIENCE_S)
        held = holder.slice(gpus=1).hold.call_one(gate.gate)
        gate.wait_entered()
        assert sampling.wait_for(sampling.samples + 2, PATIENCE_S)
        busy = sampling.samples
        gate.open()
        held.get()
        sayer.say.call("<b>after</b>").get()
        assert sampling.wait_for(sampling.samples + 2, PATIENCE_S)
    record(0)
    times = [row[0] for row in query_file(path, "FROM history.samples ORDER BY 1").rows]
    at_s = (times[busy - 1] - times[0]) / 1e6
    with dashboard_server(str(path)) as server:
        yield Page(server, "page"), at_s, path


def test_a_recording_is_shown_as_it_was(
    recording: tuple[Page, float, Path], four: ProcMesh
) -> None:
    page, at_s, _ = recording
    then, last = page.state(at_s), page.state()
    assert then["span"]["samples"] >= 5
    assert [mesh_of(one, "workers")["rows"][1]["state"] for one in (then, last)] == ["busy", "idle"]
    assert not {"stacks", "usage", "kill"} & set(then["offered"])
    calls = page.ask("timeline", at_s, mesh=four.uid)
    open_ones = [call for call in calls["calls"] if call[3] is None]
    assert [(call[0], calls["names"][call[1]]) for call in open_ones] == [(1, "recorded.hold")]
    ended = page.ask("timeline", mesh=four.uid)
    assert all(call[3] is not None for call in ended["calls"])
    texts = [[one["text"] for one in page.ask("lines", at)["folds"]] for at in (at_s, None)]
    assert ["<b>after</b>" in found for found in texts] == [False, True]
    found = page.get(f"explain?at={at_s}").json["text"]
    waited = re.search(r"client called ([\d.]+) s ago .*: recorded.hold", found)
    assert waited is not None, found
    assert float(waited[1]) <= at_s + 1  # and not until today
    assert "recorded.hold" not in page.get("explain").json["text"]


def test_sql_of_a_recording_has_the_time_of_the_page(
    recording: tuple[Page, float, Path],
) -> None:
    page, at_s, path = recording
    sql = "SELECT status, ran_s IS NULL AS runs FROM messages WHERE endpoint = 'hold'"
    then = page.post(f"query?at={at_s}", {"sql": sql}).json["rows"]
    assert then == [{"status": "active", "runs": True}]
    assert page.post("query", {"sql": sql}).json["rows"] == [{"status": "complete", "runs": False}]
    assert query_file(path, sql, at_s).rows == (("active", True),)
    seen = query_file(path, "SELECT max(as_of) FROM nodes", at_s).rows[0][0]
    first = query_file(path, "SELECT min(recorded_us) FROM history.samples").rows[0][0]
    assert abs((seen - first) / 1e6 - at_s) < 0.001


def test_questions_at_once_are_all_answered(recording: tuple[Page, float, Path]) -> None:
    page, at_s, _ = recording
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(page.state, [at_s, None, 0.0, at_s] * 8))
    assert len({len(one["meshes"]) for one in found}) == 1


def test_a_recording_has_no_stacks(recording: tuple[Page, float, Path], four: ProcMesh) -> None:
    answer = recording[0].post("ask", {"do": "stacks", "mesh": four.uid, "ranks": [0]})
    assert (answer.status, answer.error[1]) == (409, "a recording has no stacks")


@pytest.mark.parametrize(
    ("name", "why"), [("none", "there is no recording"), ("text", "cannot be read")]
)
def test_what_is_no_recording_is_refused(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "text").write_text("no database")
    status, out, err = monarch("dashboard", str(tmp_path / name))
    assert (status, out) == (1, "")
    assert why in err


def test_without_a_session_the_page_waits_for_one(tmp_path: Path) -> None:
    with dashboard_server("--in", str(tmp_path)) as server:
        assert Page(server, "page").state()["meshes"] == []
