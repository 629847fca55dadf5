"""Where each task of a scheduler listens."""

from __future__ import annotations

import pytest

from monarch._src.job.launchers.remote.remote_program import Serve, task_address


@pytest.mark.parametrize(
    ("task", "local", "address"),
    [
        ("0", "0", "tcp://*:443"),
        ("1", "0", "tcp://*:7000"),
        ("5", "1", "tcp://*:7001"),
    ],
)
def test_a_task_has_its_own_address_and_port(task: str, local: str, address: str) -> None:
    env = {"SLURM_PROCID": task, "SLURM_LOCALID": local}
    assert task_address(["tcp://*:443", "tcp://*:7000"], env) == address


def test_a_free_port_is_one_for_every_task() -> None:
    env = {"SLURM_PROCID": "3", "SLURM_LOCALID": "3"}
    assert task_address(["tcp://*:0"], env) == "tcp://*:0"


def test_a_request_shows_no_key() -> None:
    assert "secret" not in repr(Serve(["tcp://*:0"], {"worker.key": "secret"}))
