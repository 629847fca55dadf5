"""The admin server that a program starts beside itself: `observe.admin` and `enable_admin`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from monarch._src.system import process_table
from monarch.actor import ProcMesh, shutdown_context
from monarch.config import clear_runtime_config
from monarch.job import LocalJob, MeshAdminConfig, ProcessJob
from monarch.observe import admin, record
from tests.integration.admin_server import session_directory, session_name

pytestmark = pytest.mark.slow
PATIENCE_S = 60.0


def test_a_block_serves_the_session_and_leaves_no_server(four: ProcMesh) -> None:
    four.initialized.get()
    with admin() as server:
        assert server.url.startswith("http+unix://")
        assert server.get("/v1/root")["properties"]["Root"]["num_procs"] >= 4
        pid = server.get("/v1/admin")["pid"]
        with admin() as same:
            assert same.url == server.url
        assert server.get("/v1/admin")["pid"] == pid, "the inner block has not ended it"
        assert server.owner_token not in repr(server)
    assert process_table.entry(pid) is None
    assert not (session_directory() / "admin.sock").exists()


def test_a_block_can_listen_at_a_port(four: ProcMesh) -> None:
    four.initialized.get()
    with admin("127.0.0.1:0") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.get("/v1/admin")["sessions"][0] == session_name()
        with pytest.raises(RuntimeError, match="there is no node host:nope"):
            server.get("/v1/host:nope")


def test_an_address_that_will_not_do_is_an_error_with_the_remedy(four: ProcMesh) -> None:
    four.initialized.get()
    with (
        pytest.raises(RuntimeError, match=r"has not started: .*the token would pass in clear"),
        admin("0.0.0.0:0"),
    ):
        pass


def test_without_a_session_there_is_nothing_to_serve(run_python: Callable[..., str]) -> None:
    program = """
from monarch.observe import admin
try:
    with admin():
        pass
except RuntimeError as error:
    print(error)
"""
    assert "needs a session" in run_python(program)


def test_a_job_starts_the_server_and_shows_its_hosts(tmp_path: Path) -> None:
    job = ProcessJob({"trainers": 1}).enable_admin(admin_addr="127.0.0.1:0")
    state = job.state(tmp_path / "job")
    try:
        assert state.admin_url is not None
        assert state.admin_url.startswith("http://127.0.0.1:")
        procs = state.trainers.spawn_procs({"gpus": 2}, name="far")
        procs.initialized.get()
        with admin() as server:
            assert server.url == state.admin_url
            found = server.get("/v1/nodes?kind=proc")["nodes"]
        names = [node["properties"]["Proc"]["proc_name"] for node in found]
        assert sum(name.startswith("far[") for name in names) == 2
        assert job.state(tmp_path / "job").admin_url == state.admin_url
        procs.stop().get(timeout=PATIENCE_S)
    finally:
        job.kill()
        shutdown_context()


def test_options_of_the_server_are_given_in_one_way() -> None:
    with pytest.raises(TypeError, match="not both"):
        LocalJob().enable_admin(MeshAdminConfig(), admin_addr="127.0.0.1:0")
    with pytest.raises(TypeError, match="unexpected keyword"):
        LocalJob().enable_admin(port=1)
    assert LocalJob().state(None).admin_url is None


def test_a_job_of_this_host_starts_the_session_that_it_serves() -> None:
    state = LocalJob().enable_telemetry(mesh_admin_config=MeshAdminConfig()).state(None)
    try:
        assert state.admin_url is not None
        assert state.admin_url.startswith("http+unix://")
    finally:  # this program would keep history in later sessions too
        record(0, timeout=PATIENCE_S)
        clear_runtime_config()
        shutdown_context()
