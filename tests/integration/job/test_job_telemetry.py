"""A job that keeps history: its programs ask about the past, as Monarch's do."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._src.actor.runtime import runtime
from monarch._src.admin.server_files import read_record
from monarch.actor import Actor, endpoint, shutdown_context
from monarch.config import clear_runtime_config, get_runtime_config
from monarch.job import LocalJob, MeshAdminConfig, TelemetryConfig
from monarch.observe import Profile, record
from tests.integration.admin_server import unix_post
from tests.workers import PATIENCE_S

pytestmark = pytest.mark.slow


class Worker(Actor):
    """Answers."""

    @endpoint
    def step(self) -> int:
        return 1


@pytest.fixture(autouse=True)
def nothing_is_kept_afterwards() -> Iterator[None]:
    yield
    record(0, timeout=PATIENCE_S)
    clear_runtime_config()


def test_a_job_keeps_history_from_its_state_on(tmp_path: Path) -> None:
    job = LocalJob().enable_telemetry(TelemetryConfig(retention_secs=600))
    state = job.state(tmp_path / "job")
    procs = state.hosts.spawn_procs({"gpus": 2}, name="trainers")
    procs.spawn("worker", Worker).step.call().get()
    expected = {"rows": [{"endpoint": "step", "n": 2}]}
    sql = "SELECT endpoint, count(*) AS n FROM messages WHERE mesh = 'trainers' GROUP BY endpoint"
    assert state.query_engine_client.query(sql, PATIENCE_S) == expected
    assert job.telemetry_query_client().query(sql, PATIENCE_S) == expected
    assert get_runtime_config()["telemetry_retention"] == 600.0
    procs.stop().get()
    job.kill()


@pytest.fixture
def own_session() -> Iterator[None]:
    """The admin server of a test ends with the session of the test."""
    shutdown_context()
    yield
    shutdown_context()


@pytest.mark.usefixtures("own_session")
def test_programs_for_monarch_read_the_addresses_of_a_job_with_telemetry(tmp_path: Path) -> None:
    job = LocalJob().enable_telemetry()
    state = job.state(tmp_path / "job")
    procs = state.hosts.spawn_procs({"gpus": 2}, name="trainers")
    procs.initialized.get()
    session = Path(runtime().directory)
    assert state.dashboard_url is None
    assert read_record(session) is None, "nothing has asked for a server"
    url = state.telemetry_url
    assert url is not None
    assert url.startswith("http+unix://")
    record_of_server = read_record(session)
    assert record_of_server is not None
    assert url == state.admin_url == record_of_server.url
    sql = "SELECT rank FROM procs WHERE mesh = 'trainers' ORDER BY rank"
    answer = unix_post(url, "/v1/query", {"sql": sql}, record_of_server.observer_token)
    assert answer.json["rows"] == [{"rank": 0}, {"rank": 1}]
    assert state.dashboard_url is None
    procs.stop().get()
    job.kill()


@pytest.mark.usefixtures("own_session")
def test_a_job_with_a_dashboard_has_all_addresses_at_its_port(tmp_path: Path) -> None:
    config = TelemetryConfig(include_dashboard=True, dashboard_port=0)
    job = LocalJob().enable_telemetry(config)
    state = job.state(tmp_path / "job")
    assert read_record(Path(runtime().directory)) is not None, "`state` has started it"
    url = state.telemetry_url
    assert url is not None
    assert url.startswith("http://127.0.0.1:")
    assert state.admin_url == url
    assert state.dashboard_url is not None
    assert state.dashboard_url.startswith(f"{url}/dashboard/?token=")
    job.kill()


def test_a_job_without_telemetry_has_neither_engine_nor_addresses(tmp_path: Path) -> None:
    job = LocalJob()
    state = job.state(tmp_path / "job")
    for name in ("query_engine", "telemetry_url", "admin_url", "dashboard_url"):
        assert getattr(state, name) is None, name
    job.enable_telemetry()
    assert state.query_engine is not None, "history is kept from now on, so it has its engine"
    job.kill()


def test_without_the_extra_for_servers_queries_run_and_addresses_say_what_is_missing(
    run_python: Callable[..., str],
) -> None:
    program = """
import sys
sys.modules["starlette"] = None
from monarch.job import LocalJob, TelemetryConfig
state = LocalJob().enable_telemetry().state(None)
print(state.query_engine_client.query("SELECT count(*) AS n FROM procs"), state.dashboard_url)
for name in ("telemetry_url", "admin_url"):
    try:
        print(getattr(state, name))
    except RuntimeError as error:
        print(error)
try:
    LocalJob().enable_telemetry(TelemetryConfig(include_dashboard=True)).state(None)
except RuntimeError as error:
    print(error)
"""
    missing = (
        "the admin server needs starlette, which is not installed; "
        "pip install 'monarch-jupyter[admin]'"
    )
    expected = ["{'rows': [{'n': 0}]} None", *[missing] * 3]
    assert run_python(program).splitlines() == expected


def test_the_engine_of_a_job_answers_with_arrow_tables(tmp_path: Path) -> None:
    """As programs for Monarch 0.6 ask."""
    pytest.importorskip("pyarrow", reason="an Arrow table is a pyarrow.Table")
    job = LocalJob().enable_telemetry()
    state = job.state(tmp_path / "job")
    procs = state.hosts.spawn_procs({"gpus": 2}, name="trainers")
    procs.spawn("worker", Worker).step.call().get()
    space: dict[str, Any] = {}
    exec("from monarch.distributed_telemetry.engine import QueryEngine", space)
    engine = state.query_engine
    assert engine is not None
    assert isinstance(engine, space["QueryEngine"])
    sql = "SELECT endpoint, count(*) AS n FROM messages WHERE mesh = 'trainers' GROUP BY endpoint"
    assert engine.query(sql).to_pydict() == {"endpoint": ["step"], "n": [2]}
    reader = engine.query_stream(sql)
    assert [batch.to_pylist() for batch in reader] == [[{"endpoint": "step", "n": 2}]]
    procs.stop().get()
    job.kill()


def test_a_job_serves_the_dashboard_of_its_session(tmp_path: Path) -> None:
    config = TelemetryConfig(include_dashboard=True, dashboard_port=0)
    job = LocalJob().enable_telemetry(config)
    state = job.state(tmp_path / "job")
    assert state.dashboard_url is not None
    page, _, token = state.dashboard_url.partition("?token=")
    cookies = urllib.request.HTTPCookieProcessor()
    opened = urllib.request.build_opener(cookies).open(state.dashboard_url, timeout=PATIENCE_S)
    with opened:
        assert opened.url == page
        assert b"dashboard_page.js" in opened.read()
    assert token in [cookie.value for cookie in cookies.cookiejar]
    job.kill()


def test_telemetry_may_be_enabled_after_the_state(tmp_path: Path) -> None:
    job = LocalJob()
    state = job.state(tmp_path / "job")
    procs = state.hosts.spawn_procs({"gpus": 1}, name="trainers")
    worker = procs.spawn("worker", Worker)
    worker.step.call().get()
    assert job.enable_telemetry(retention_secs=60, rows=10) is job
    worker.step.call().get()
    rows = job.telemetry_query_client().query("SELECT count(*) AS n FROM messages", PATIENCE_S)
    assert rows == {"rows": [{"n": 1}]}
    procs.stop().get()
    job.kill()


def test_history_without_retention_is_kept(tmp_path: Path) -> None:
    """As in Monarch, where 0 means that no row is too old."""
    job = LocalJob().enable_telemetry(TelemetryConfig(retention_secs=0))
    state = job.state(tmp_path / "job")
    procs = state.hosts.spawn_procs({"gpus": 2}, name="trainers")
    procs.spawn("worker", Worker).step.call().get()
    rows = state.query_engine_client.query("SELECT count(*) AS n FROM messages", PATIENCE_S)
    assert rows == {"rows": [{"n": 2}]}
    procs.stop().get()
    job.kill()


def test_the_record_of_a_job_does_not_have_its_telemetry(tmp_path: Path) -> None:
    job = LocalJob().enable_telemetry()
    job.dump(tmp_path / "job")
    assert "telemetry" not in (tmp_path / "job").read_text()


def test_a_profile_of_a_job_is_handed_over_when_it_is_ready(tmp_path: Path) -> None:
    job = LocalJob()
    job.state(tmp_path / "job")
    written: list[Path] = []

    def export(ready: Profile) -> None:
        written.append(ready.export_perfetto_trace(tmp_path / "trace"))

    with job.profile(on_trace_ready=export):
        pass
    assert [path.exists() for path in written] == [True]
    job.kill()


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="retention_secs=-1"):
        TelemetryConfig(retention_secs=-1)
    with pytest.raises(TypeError, match="give a TelemetryConfig or retention_secs, not both"):
        LocalJob().enable_telemetry(TelemetryConfig(), retention_secs=5)
    with pytest.raises(ValueError, match="dashboard_port=70000"):
        TelemetryConfig(include_dashboard=True, dashboard_port=70000)
    text: Any = "60"
    with pytest.raises(TypeError, match="retention_secs='60': give a number"):
        TelemetryConfig(retention_secs=text)
    with pytest.raises(TypeError, match="dashboard_port='60': give a number"):
        TelemetryConfig(dashboard_port=text)
    number: Any = 1729
    with pytest.raises(TypeError, match="admin_addr=1729: give 'HOST:PORT' or 'unix:PATH'"):
        MeshAdminConfig(number)
