"""`monarch worker` where it cannot be one: what was said wrong, and what helps."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from monarch._src.net.hosts import keys
from monarch._src.net.state.access import Role
from monarch.actor import attach, attach_to_workers, shutdown_context, start_worker_loop_forever
from monarch.config import configured
from tests.integration.commands import monarch
from tests.workers import TRUST_ALL, worker


def refused(*arguments: str) -> str:
    status, out, err = monarch("worker", *arguments)
    assert (status, out) == (1, "")
    return err


def test_a_port_that_another_has_is_told_as_that(job: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        said = f"cannot listen at {taken}: Address already in use; another program listens there"
        assert said in refused("--address", taken, "--keys", job)
        with pytest.raises(OSError, match="another program listens there; end it, or take anoth"):
            start_worker_loop_forever(address=taken, ca=job)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("tcp://no-such-host.invalid:0", "the name is not known here ("),
        (
            "tcp://192.0.2.1:0",
            "that is not an address of this host; `*` stands for all of them",
        ),
        ("ipc:///no/such/directory/s", "there is no such directory; make it"),
    ],
)
def test_an_address_of_which_this_host_knows_nothing_is_named(
    job: str, address: str, why: str
) -> None:
    err = refused("--address", address, "--keys", job)
    assert err.startswith(f"monarch worker: cannot listen at {address}: ")
    assert why in err


@pytest.mark.parametrize("role", [Role.OWNER, Role.OBSERVER])
def test_the_key_of_somebody_else_makes_no_worker(job: str, role: Role) -> None:
    key = str(Path(job, keys.key_file(role)))
    err = refused("--address", "tcp://127.0.0.1:0", "--keys", job, "--key", key)
    assert f"{key} is the key of an {role.value}" in err
    assert "worker.key" in err


# --- mistakes of clients --------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.WORKER, Role.OBSERVER])
def test_who_acts_with_another_key_than_an_owners_is_told_at_once(job: str, role: Role) -> None:
    key = Path(job, keys.key_file(role))
    why = rf"is the key of an? {role.value}.*: owner\.key"
    with pytest.raises(PermissionError, match=why):
        attach_to_workers(ca=job, private_key=key, workers=["tcp://127.0.0.1:9"])
    with pytest.raises(PermissionError, match=why):
        attach("tcp://127.0.0.1:9", ca=job, private_key=key)


def test_keys_that_did_not_fit_are_not_used_again_when_others_of_that_name_are_given(
    tmp_path: Path,
) -> None:
    for name in ("right", "wrong"):
        keys.make(tmp_path / name, "training")
    right, wrong = str(tmp_path / "right"), str(tmp_path / "wrong")
    with worker("--address", "tcp://127.0.0.1:0", "--keys", right) as one:
        with configured(liveness=1.5), pytest.raises(ConnectionError, match="handshake fails"):
            attach_to_workers(ca=wrong, workers=[one.address]).initialized.get()
        mesh = attach_to_workers(ca=right, workers=[one.address])
        with pytest.raises(ValueError, match="one key at a time; attach in another process"):
            attach_to_workers(ca=wrong, workers=[one.address])
        mesh.stop().get()
        shutdown_context(reason="the worker is about to end")


def test_a_client_without_keys_is_told_that_the_worker_may_have_some(
    job: str, caplog: pytest.LogCaptureFixture
) -> None:
    with worker("--address", "tcp://127.0.0.1:0", "--keys", job) as one:
        why = r"is it a worker, without keys, as this side is\?"
        with configured(liveness=1.5), pytest.raises(ConnectionError, match=why):
            attach_to_workers(ca=TRUST_ALL, workers=[one.address]).initialized.get()
    shutdown_context(reason="the worker has ended")
    lost = [record.getMessage() for record in caplog.records if "is lost" in record.getMessage()]
    assert lost
    assert all(f"the link to {one.address} is lost" in line for line in lost), lost


def test_a_worker_that_was_stopped_is_among_what_is_asked_about(job: str) -> None:
    with worker("--address", "tcp://127.0.0.1:0", "--keys", job) as one:
        one.process.send_signal(signal.SIGSTOP)
        with configured(liveness=1.5), pytest.raises(ConnectionError, match=r"or is it stopped\?"):
            attach_to_workers(ca=job, workers=[one.address]).initialized.get()
        one.process.send_signal(signal.SIGCONT)
    shutdown_context(reason="the worker has ended")


@pytest.mark.parametrize(
    ("workers", "why"),
    [
        ("tcp://h1:26600", "give a list of addresses"),
        (None, "give a list of addresses"),
        ([7], "7 is not an address; give text"),
    ],
)
def test_workers_are_a_list_of_addresses(job: str, workers: object, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        attach_to_workers(ca=job, workers=workers)  # pyright: ignore[reportArgumentType]


def test_every_interface_is_listened_at_and_not_dialled(job: str) -> None:
    with pytest.raises(ValueError, match="cannot be dialled: it stands for every interface"):
        attach_to_workers(ca=job, workers=["tcp://*:26600"])
    with pytest.raises(ValueError, match="cannot be dialled: it stands for every interface"):
        attach("tcp://*:26600", ca=job)


def test_a_socket_that_is_not_there_is_told_by_its_errno(job: str, tmp_path: Path) -> None:
    with configured(liveness=1), pytest.raises(ConnectionError, match="there is no such socket"):
        attach_to_workers(ca=job, workers=[f"ipc://{tmp_path}/nobody"]).initialized.get()
