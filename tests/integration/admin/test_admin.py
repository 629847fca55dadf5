"""The admin server over real sockets: nodes, lists, queries, figures, actions, strangers."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import jsonschema
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from monarch._src.admin.cluster_reader import find_live
from monarch._src.admin.handlers import ActionRefusedError, kill_proc
from monarch._src.admin.state.cursors import Cursor, encode
from monarch.actor import ProcMesh, this_host
from tests.conftest import Faults
from tests.integration.admin_server import (
    PATIENCE_S,
    AdminProcess,
    admin_server,
    command,
    session_directory,
    session_name,
)
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def admin(four: ProcMesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    """A server at the socket in the directory of the session."""
    four.initialized.get()
    with admin_server(tmp_path_factory.mktemp("admin")) as found:
        yield found


def proc_reference(mesh: ProcMesh, rank: int) -> str:
    return f"proc:{session_name()}:{mesh.uid}:{rank}"


# --- nodes ----------------------------------------------------------------------------------------


def test_every_node_is_reached_from_the_root(admin: AdminProcess, four: ProcMesh) -> None:
    schema = admin.get("/v1/schema").json
    pending, seen = ["root"], list[str]()
    while pending:
        reference = pending.pop()
        node = admin.get(f"/v1/{quote(reference, safe='')}").json
        jsonschema.validate(node, schema)
        assert node["identity"] == reference
        seen.append(reference)
        pending += node["children"]
    assert {proc_reference(four, rank) for rank in range(4)} <= set(seen)
    assert len(seen) == len(set(seen))


def test_a_proc_says_what_it_runs(admin: AdminProcess, four: ProcMesh, gate: GateKeeper) -> None:
    answer = four.spawn("holder", Faulty).slice(gpus=2).hold.call_one(gate.gate)
    gate.wait_entered()
    reference = proc_reference(four, 2)
    while True:  # a snapshot may be a second old
        found = admin.get(f"/v1/{reference}").json["properties"]["Proc"]
        if found["status"] == "busy":
            break
    assert (found["proc_name"], found["running"]) == ("workers[gpus=2]", "Faulty.hold")
    stacks = admin.get(f"/v1/pyspy/{reference}").json
    frames = [frame["name"] for thread in stacks["threads"] for frame in thread["frames"]]
    assert frames == ["Faulty.hold", "Gate.pass_through"]
    gate.open()
    answer.get(timeout=PATIENCE_S)


def test_stacks_that_were_stored_are_there_when_the_program_has_gone_on(
    admin: AdminProcess, four: ProcMesh, gate: GateKeeper
) -> None:
    path = f"/v1/pyspy_dump/{proc_reference(four, 2)}"
    answer = four.spawn("faulty", Faulty).hold_on.call([2], gate.gate)
    gate.wait_entered()
    stored = admin.post(path)
    assert stored.status == 200
    gate.open()
    answer.get(timeout=PATIENCE_S)
    dump = stored.json["dump_id"]
    frames = {"sql": f"SELECT thread, function FROM stored_frames WHERE dump_id = '{dump}'"}
    stored_rows = admin.post("/v1/query", frames).json["rows"]
    assert any(row["function"].endswith("pass_through") for row in stored_rows), stored_rows
    sql = (
        "SELECT d.proc_ref, d.capture_mode, d.pid = p.pid AS same, f.name FROM pyspy_dumps d "
        "JOIN pyspy_stack_traces t USING (dump_id) JOIN pyspy_frames f USING (dump_id, thread_id) "
        "JOIN procs p ON p.mesh || '[' || p.rank || ']' = d.proc_ref "
        f"WHERE dump_id = '{dump}' AND f.frame_depth < 2 AND thread_id IN (SELECT thread_id FROM "
        f"pyspy_frames WHERE dump_id = '{dump}' AND name LIKE '%pass_through') "
        "ORDER BY f.frame_depth"
    )
    inner, outer = admin.post("/v1/query", {"sql": sql}).json["rows"]
    place = {"proc_ref": f"{four.name}[2]", "capture_mode": "stored", "same": True}
    assert inner == {**place, "name": inner["name"]}
    assert inner["name"].endswith("pass_through")
    assert outer["name"].endswith("hold_on")
    idle = admin.post(f"/v1/pyspy_dump/{proc_reference(four, 0)}")
    assert idle.status == 200, "an idle rank has stacks too"
    count = {"sql": "SELECT dump_id, count(*) > 0 AS n FROM stored_frames GROUP BY 1"}
    found = {row["dump_id"] for row in admin.post("/v1/query", count).json["rows"]}
    assert {dump, idle.json["dump_id"]} <= found
    assert admin.post("/v1/pyspy_dump/proc:none:1:0").status == 404
    assert admin.post("/v1/pyspy_dump/root").status == 400


def test_a_flame_graph_of_a_proc_is_a_picture(
    admin: AdminProcess, four: ProcMesh, gate: GateKeeper
) -> None:
    path = f"/v1/pyspy_profile_svg/{proc_reference(four, 2)}"
    answer = four.spawn("faulty", Faulty).hold_on.call([2], gate.gate)
    gate.wait_entered()
    found = admin.post(path, {"duration_s": 1, "rate_hz": 50, "threads": True})
    assert found.status == 200
    assert ET.fromstring(found.body).tag == "{http://www.w3.org/2000/svg}svg"
    assert b"pass_through" in found.body
    gate.open()
    answer.get(timeout=PATIENCE_S)
    for wanted in ([], {"duration_s": 0}, {"duration_s": 301}, {"seconds": 1}):
        refused = admin.post(path, wanted)
        assert (refused.status, refused.error[0]) == (400, "bad_request")
    assert admin.post("/v1/pyspy_profile_svg/proc:none:1:0", {}).status == 404
    assert admin.post("/v1/pyspy_profile_svg/root", {}).status == 400


def test_a_list_is_paged_within_one_snapshot(admin: AdminProcess) -> None:
    page = admin.get("/v1/nodes?kind=proc&limit=2").json
    number, names = page["snapshot"], [node["identity"] for node in page["nodes"]]
    assert len(names) == 2
    while page["next_cursor"] is not None:
        page = admin.get(f"/v1/nodes?kind=proc&limit=2&cursor={page['next_cursor']}").json
        assert page["snapshot"] == number
        names += [node["identity"] for node in page["nodes"]]
    assert len(names) == len(set(names)) >= 4


def test_settings_of_a_proc_come_with_their_source(admin: AdminProcess, four: ProcMesh) -> None:
    found = admin.get(f"/v1/config/{proc_reference(four, 0)}").json
    settings = {one["name"]: (one["value"], one["source"]) for one in found["settings"]}
    assert settings["liveness"] == ("30.0", "default")
    assert settings["cleanup_timeout"] == ("10.0", "derived")


def test_the_server_describes_itself(admin: AdminProcess) -> None:
    found = admin.get("/v1/admin").json
    jsonschema.validate(found, admin.get("/v1/schema/admin").json)
    assert (found["pid"], found["role"]) == (admin.process.pid, "observer")
    assert found["sessions"] == [session_name()]
    assert admin.get("/v1/openapi.json").json["openapi"] == "3.1.0"
    assert "workers[gpus=3]" in admin.get("/v1/tree").body.decode()


# --- queries and figures --------------------------------------------------------------------------


def test_sql_runs_over_the_live_state(admin: AdminProcess) -> None:
    sql = "SELECT rank, state FROM procs WHERE mesh = 'workers' AND rank < 2 ORDER BY rank"
    found = admin.post("/v1/query", {"sql": sql}).json
    assert [row["rank"] for row in found["rows"]] == [0, 1]
    assert (found["columns"], found["missing"]) == (["rank", "state"], [])


@pytest.mark.parametrize(
    "sql",
    [
        "COPY procs TO '{path}'", "SELECT * FROM read_csv('/etc/passwd')", "INSTALL httpfs",
        "ATTACH '{path}' AS x", "CREATE TABLE x AS SELECT 1", "SET enable_external_access = true",
        "SELECT 1; SELECT 2", "EXPORT DATABASE '{path}'", "SELEC 1", "",
        "SELECT * FROM glob('/*')", "SELECT * FROM range(1000000000)",
    ],
)  # fmt: skip
def test_sql_that_could_do_harm_is_refused(admin: AdminProcess, sql: str, tmp_path: Path) -> None:
    path = tmp_path / "written"
    answer = admin.post("/v1/query", {"sql": sql.format(path=path)})
    assert (answer.status, answer.error[0]) == (400, "bad_request")
    assert not path.exists()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"sql": 1}', b'{"sql": "SELECT 1", "x": 1}', b"\xff\xfe",
     b'{"sql": "SELECT 1", "timeout_s": -1}', b'{"sql": "SELECT 1", "timeout_s": 1e9}'],
)  # fmt: skip
def test_a_body_that_is_no_query_is_refused(admin: AdminProcess, body: bytes) -> None:
    answer = admin.post("/v1/query", body)
    assert (answer.status, answer.error[0]) == (400, "bad_request")


def test_a_body_without_end_is_refused(admin: AdminProcess) -> None:
    answer = admin.post("/v1/query", b" " * 70_000)
    assert (answer.status, answer.error[0]) == (413, "too_large")


def test_figures_can_be_scraped(admin: AdminProcess) -> None:
    answer = admin.get("/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {f.name: f for f in text_string_to_metric_families(answer.body.decode())}
    ranks = {s.labels["rank"] for s in families["monarch_proc_messages"].samples}
    assert ranks == {"0", "1", "2", "3"}
    assert families["monarch_scrape_missing"].samples[0].value == 0


# --- hostile input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1/..%2f..%2fetc%2fpasswd", "/v1/%00", "/v1/%ff%fe", "/v1/proc%3Aa%3A1", "/v1/foo",
        "/v1/" + "a" * 5000, "/v1/pyspy/root", "/v1/pyspy/host%3Aabc", "/v1/config/x",
        "/v1/root?limit=0", "/v1/root?limit=99999999999", "/v1/root?limit=1&cursor=" + "A" * 5000,
        "/v1/root?cursor=%00", "/v1/root?cursor=kv8B", "/v1/nodes?kind=root", "/v1/root?page=2",
        "/v1/nodes?limit=%D9%A3", "/v1/explain?stacks=yes",
    ],
)  # fmt: skip
def test_what_is_no_request_of_the_api_is_refused_in_its_form(
    admin: AdminProcess, path: str
) -> None:
    answer = admin.get(path)
    assert (answer.status, answer.error[0]) == (400, "bad_request")
    assert len(answer.body) < 1000


@pytest.mark.parametrize(
    "path", ["/", "/v2/root", "/v1/actor:none:1:2:3", "/v1/host:none", "/v1/pyspy/proc:none:1:0"]
)
def test_what_is_not_there_is_not_found(admin: AdminProcess, path: str) -> None:
    answer = admin.get(path)
    assert (answer.status, answer.error[0]) == (404, "not_found")


def test_a_cursor_of_a_snapshot_that_is_gone_is_refused(admin: AdminProcess) -> None:
    answer = admin.get(f"/v1/root?cursor={encode(Cursor(10_000, 1))}")
    assert answer.status == 400
    assert "snapshot 10000 is not kept any more" in answer.error[1]


def test_another_method_is_refused(admin: AdminProcess) -> None:
    answer = admin.request("DELETE", "/v1/root")
    assert (answer.status, answer.error[0]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    "data",
    [b"\0" * 100, b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"x" * 200_000],
)
def test_bytes_that_are_no_http_do_not_end_the_server(tcp_admin: AdminProcess, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", tcp_admin.port), PATIENCE_S) as stranger:
        try:
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            answer = stranger.recv(4096)
        except OSError:  # the server has closed the connection meanwhile
            answer = b""
    assert b" 200 " not in answer
    assert tcp_admin.get("/v1/admin", "observer").status == 200


# --- access ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/v1/root", "/v1/openapi.json", "/metrics", "/v1/foo", "/v1/query"]
)
@pytest.mark.parametrize("token", [None, "", "x", "observer "])
def test_a_stranger_at_the_port_learns_nothing(
    tcp_admin: AdminProcess, path: str, token: str | None
) -> None:
    answer = tcp_admin.get(path, token)
    assert answer.status == 401
    assert answer.json == {"error": {"code": "unauthorized", "message": "a token is needed"}}
    assert "server" not in {name.lower() for name in answer.headers}


def test_two_tokens_in_one_request_prove_nothing(tcp_admin: AdminProcess) -> None:
    token = tcp_admin.tokens["owner"].encode()
    with socket.create_connection(("127.0.0.1", tcp_admin.port), PATIENCE_S) as peer:
        header = b"Authorization: Bearer " + token + b"\r\n"
        peer.sendall(b"GET /v1/root HTTP/1.1\r\nHost: x\r\nConnection: close\r\n")
        peer.sendall(header + b"Authorization: Bearer x\r\n\r\n")
        assert peer.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_a_token_opens_the_port_for_its_role(tcp_admin: AdminProcess) -> None:
    assert tcp_admin.get("/v1/admin", "observer").json["role"] == "observer"
    assert tcp_admin.get("/v1/admin", "owner").json["role"] == "owner"
    refused = tcp_admin.post(f"/v1/stop/host:{session_name()}", token="observer")
    assert (refused.status, refused.error[0]) == (403, "forbidden")


def test_files_of_the_server_are_private_and_go_with_it(four: ProcMesh, tmp_path: Path) -> None:
    four.initialized.get()
    directory = session_directory()
    path = tmp_path / "own.sock"
    with admin_server(tmp_path, "--listen", f"unix:{path}") as found:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "admin-tokens.json").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "actions.jsonl").stat().st_mode) == 0o600
        assert found.get("/v1/root").status == 200
        tokens = found.tokens.values()
        assert not any(t in Path(f"/proc/{found.process.pid}/cmdline").read_text() for t in tokens)
    assert not path.exists()
    assert directory.exists()


CONNECTS = """
import os, socket, sys
os.setuid(65534)
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except PermissionError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_the_socket_is_closed_to_other_users_wherever_it_lies(
    four: ProcMesh, tmp_path: Path
) -> None:
    four.initialized.get()
    path = tmp_path / "own.sock"
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o711)
    with admin_server(tmp_path, "--listen", f"unix:{path}"):
        tried = subprocess.run(
            [sys.executable, "-I", "-c", CONNECTS, str(path)],
            capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
    assert "Permission denied" in tried.stdout


def test_two_servers_do_not_share_a_socket(admin: AdminProcess) -> None:
    second = command("--session", session_name())
    _, err = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 1
    assert "another server listens at" in err
    assert admin.get("/v1/admin").status == 200


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("0.0.0.0:0", "the token would pass in clear"),
        ("[::]:1729", "the token would pass in clear"),
        ("nonsense", "is no address"),
        ("127.0.0.1:99999", "is no address"),
        ("unix:/etc/passwd", "is no socket"),
        ("unix:/nowhere/at/all", "cannot listen"),
    ],
)
def test_an_address_that_will_not_do_is_refused_with_the_remedy(
    four: ProcMesh, address: str, problem: str
) -> None:
    four.initialized.get()
    process = command("--session", session_name(), "--listen", address)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (1, "")
    assert problem in err


# --- actions, and hosts that die ------------------------------------------------------------------


def test_an_owner_kills_a_proc_and_every_action_is_logged(faults: Faults, tmp_path: Path) -> None:
    mesh = this_host().spawn_procs({"gpus": 2}, name="doomed")
    mesh.initialized.get()
    with admin_server(tmp_path, "--listen", "127.0.0.1:0") as found:
        reference = proc_reference(mesh, 1)
        assert found.post(f"/v1/kill/{reference}", token="observer").status == 403
        done = found.post(f"/v1/kill/{reference}", token="owner")
        assert "of doomed[gpus=1]" in done.json["done"][0]
        faults.take_ranks({1})
        again = found.post(f"/v1/kill/{proc_reference(mesh, 7)}", token="owner")
        assert again.status == 404
    lines = [json.loads(line) for line in (tmp_path / "actions.jsonl").read_text().splitlines()]
    events = [(line["event"], line["target"]) for line in lines]
    assert events == [
        ("refused", reference), ("begun", reference), ("ended", reference),
        ("begun", proc_reference(mesh, 7)), ("ended", proc_reference(mesh, 7)),
    ]  # fmt: skip
    assert lines[2]["status"] == "200"
    mesh.stop().get(timeout=PATIENCE_S)


def test_a_process_of_no_rank_is_not_killed(four: ProcMesh) -> None:
    four.initialized.get()
    (session,) = find_live(None, [session_name()])
    with pytest.raises(ActionRefusedError, match="does not belong to session"):
        kill_proc(session, os.getpid())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(PATIENCE_S)
    with pytest.raises(ActionRefusedError, match="has ended"):
        kill_proc(session, ended.pid)


def test_a_query_during_the_death_of_a_host_ends(tmp_path: Path, four: ProcMesh) -> None:
    four.initialized.get()
    program = tmp_path / "client.py"
    program.write_text(CLIENT)
    client = subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    assert client.stdout is not None
    name, agent = client.stdout.readline().split()
    where = ("--listen", "127.0.0.1:0", "--session", name)
    with admin_server(tmp_path, *where) as found, ThreadPoolExecutor(1) as pool:
        os.kill(int(agent), signal.SIGSTOP)
        sql = "SELECT session, count(*) AS n FROM procs GROUP BY ALL"
        asked = pool.submit(found.post, "/v1/query", {"sql": sql}, "observer")
        answer = asked.result(PATIENCE_S).json
        assert [row["session"] for row in answer["rows"]] == [session_name()]
        assert {one["where"] for one in answer["missing"]} == {f"session {name}"}
        os.kill(int(agent), signal.SIGKILL)
        host = found.get(f"/v1/host:{name}", "observer")
        assert host.status in (404, 504)
        metrics = found.get("/metrics", "observer").body.decode()
        assert "monarch_scrape_missing" in metrics
    assert client.stdin is not None
    client.stdin.close()
    client.wait(PATIENCE_S)
    client.stdout.close()


CLIENT = """
import sys
from monarch._src.actor.runtime import runtime
from monarch._src.net.session_directory import PREFIX
from monarch._src.session import records
from pathlib import Path
import os
import monarch.actor
from monarch.actor import this_host

monarch.actor.unhandled_fault_hook = lambda failure: None
mesh = this_host().spawn_procs({"gpus": 1}, name="other")
mesh.initialized.get()
directory = Path(runtime().directory)
record = records.read(directory)
print(directory.name.removeprefix(PREFIX), record.agent_pid, flush=True)
sys.stdin.read()
os._exit(0)
"""


def test_the_server_ends_with_its_session(tmp_path: Path) -> None:
    program = tmp_path / "client.py"
    program.write_text(CLIENT.replace("os._exit(0)", ""))
    client = subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    assert client.stdin is not None
    assert client.stdout is not None
    name, _agent = client.stdout.readline().split()
    server = command("--session", name, "--json", "--audit", str(tmp_path / "actions"))
    assert server.stdout is not None
    assert json.loads(server.stdout.readline())["socket"].endswith("admin.sock")
    client.stdin.close()
    assert client.wait(PATIENCE_S) == 0
    client.stdout.close()
    out, err = server.communicate(timeout=PATIENCE_S)
    assert (server.returncode, out, err) == (0, "", "")
