"""Hosts that the admin server and the view observe over links, with an observer's key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from monarch.actor import attach_to_workers
from tests.audits import audited
from tests.integration.admin_server import admin_server
from tests.integration.commands import monarch
from tests.workers import PATIENCE_S, Worker

pytestmark = pytest.mark.slow
NOWHERE = "tcp://127.0.0.1:9"


def test_ranks_of_another_machine_are_nodes_and_figures(
    job: str, guarded: Worker, tmp_path: Path
) -> None:
    hosts = attach_to_workers(ca=job, workers=[guarded.address])
    mesh = hosts.spawn_procs({"gpus": 2}, name="far")
    mesh.initialized.get(timeout=PATIENCE_S)
    where = ("--listen", "127.0.0.1:0", "--at", guarded.address, "--keys", job)
    with admin_server(tmp_path, *where) as server:
        root = server.get("/v1/root", "observer").json
        assert root["missing"] == []
        assert len(root["children"]) == 2, "the session here, and the worker"
        nodes = server.get("/v1/nodes?kind=proc", "observer").json["nodes"]
        far = [one for one in nodes if one["properties"]["Proc"]["mesh"] == "far"]
        assert len(far) == 2
        refused = server.get(f"/v1/pyspy/{far[0]['identity']}", "observer")
        assert (refused.status, "on another machine" in refused.error[1]) == (400, True)
        text = server.get("/metrics", "observer").body.decode()
    families = {one.name: one for one in text_string_to_metric_families(text)}
    states = [
        sample.value
        for sample in families["monarch_procs"].samples
        if sample.labels["mesh"] == "far" and sample.labels["state"] == "idle"
    ]
    assert states == [2]
    hosts.stop().get(timeout=PATIENCE_S)
    roles = {line["role"] for line in audited(tmp_path / "audit") if line["what"] == "linked"}
    assert "observer" in roles


def test_a_host_that_is_not_there_is_an_error_node(job: str, own_base_directory: Path) -> None:
    status, out, err = monarch(
        "tui", "--in", str(own_base_directory), "--at", NOWHERE, "--keys", job, "--diagnose",
        "--no-stacks",
    )  # fmt: skip
    assert (status, err) == (0, "")
    found = json.loads(out)
    (missing,) = [one for one in found["missing"] if "127-0-0-1-9" in one["where"]]
    assert missing["table"] == "procs"
    assert {"host:tcp---127-0-0-1-9"} <= {one["identity"] for one in found["failed"]}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "pass the keys of the job: --keys DIRECTORY"),
        (["--keys", "/nowhere"], "/nowhere"),
    ],
)
def test_wrong_keys_are_one_clear_error(arguments: list[str], why: str) -> None:
    for command in (["tui", "--diagnose"], ["admin", "--listen", "127.0.0.1:0"]):
        status, out, err = monarch(*command, "--at", NOWHERE, *arguments)
        assert (status, out) == (1, "")
        assert why in err
        assert err.count("\n") == 1
