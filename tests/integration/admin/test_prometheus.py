"""A real Prometheus scrapes the admin server, and is asked for the figures by PromQL."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, endpoint, get_meter
from tests.integration.admin_server import AdminProcess

PATIENCE_S = 60.0
pytestmark = [
    pytest.mark.skipif(
        shutil.which("prometheus") is None,
        reason="no prometheus on PATH: sudo apt-get install prometheus",
    ),
    pytest.mark.slow,
]
CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs:
  - job_name: monarch
    authorization: {{credentials_file: {credentials}}}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


STEPS = get_meter().create_counter("steps")


class Trainer(Actor):
    """Counts its steps with an instrument of the program."""

    @endpoint
    def step(self) -> None:
        STEPS.add(1)

    @endpoint
    def fail(self) -> None:
        raise ValueError("no")


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **query: str) -> Any:
        address = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]

    def ask(self, expression: str) -> dict[tuple[str, ...], float]:
        """The values of a PromQL expression now, by the values of their labels."""
        found = self.get("query", query=expression)["result"]
        return {tuple(one["metric"].values()): float(one["value"][1]) for one in found}

    def wait_for(self, expression: str, expected: dict[tuple[str, ...], float]) -> None:
        """Ask until the answer is that."""
        until = time.monotonic() + PATIENCE_S
        while (found := self.ask(expression)) != expected:
            targets = self.get("targets")["activeTargets"]
            assert time.monotonic() < until, f"{expression}: {found}; {targets}"
            threading.Event().wait(0.1)  # for the next scrape, which tells nobody


@pytest.fixture(scope="module")
def prometheus(
    tcp_admin: AdminProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes it, with the observer's token."""
    folder: Path = tmp_path_factory.mktemp("prometheus")
    credentials = folder / "observer_token"
    credentials.write_text(tcp_admin.tokens["observer"])
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(credentials=credentials, port=tcp_admin.port))
    process = subprocess.Popen(
        [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0", "--log.format=logfmt",
        ],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    said: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if "Server is ready to receive web requests" in line:
                break
        listening = re.search(r'msg="Listening on" address=(127\.0\.0\.1:[1-9]\d*)', "".join(said))
        assert listening is not None, "".join(said)
        reader = threading.Thread(target=said.extend, args=(process.stdout,))
        reader.start()
        yield Prometheus(f"http://{listening[1]}")
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
    reader.join()
    process.stdout.close()


def test_prometheus_scrapes_the_server_with_its_token(prometheus: Prometheus) -> None:
    prometheus.wait_for('sum by (job) (up{job="monarch"})', {("monarch",): 1.0})
    (target,) = prometheus.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")


def test_ranks_are_counted_by_state(prometheus: Prometheus) -> None:
    prometheus.wait_for(
        'sum by (mesh, state) (monarch_procs{state="idle"})', {("workers", "idle"): 4.0}
    )
    assert prometheus.ask("sum(monarch_scrape_missing)") == {(): 0.0}
    memory = prometheus.ask('monarch_proc_resident_memory_bytes{mesh="workers"} > 1e6')
    assert len(memory) == 4


def test_calls_errors_and_instruments_of_the_program_are_counters(
    prometheus: Prometheus, four: ProcMesh
) -> None:
    trainer = four.spawn("trainer", Trainer)
    for _ in range(3):
        trainer.step.call().get()
    with pytest.raises(Exception, match="no"):
        trainer.slice(gpus=2).fail.call().get()
    calls = 'sum by (rank) (monarch_endpoint_calls_total{side="callee", endpoint="step"})'
    prometheus.wait_for(calls, {(str(rank),): 3.0 for rank in range(4)})
    errors = 'sum by (rank) (monarch_endpoint_errors_total{endpoint="fail", side="callee"}) > 0'
    prometheus.wait_for(errors, {("2",): 1.0})
    prometheus.wait_for("sum(monarch_program_steps_total)", {(): 12.0})
    kinds = prometheus.get("metadata")
    assert kinds["monarch_procs"][0]["type"] == "gauge"
    assert kinds["monarch_endpoint_calls"][0]["type"] == "counter"
