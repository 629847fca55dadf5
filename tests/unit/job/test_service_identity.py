"""Identities of workers in addresses and in the environment."""

from __future__ import annotations

import pytest

from monarch._src.net.state.addresses import identity_in, parse_dialled, parse_listening
from monarch.actor import attach_to_workers
from monarch.job import (
    SERVICE_PROC_IDS_ENV,
    SERVICE_PROC_RANK_ENV,
    deserialize_service_proc_ids,
    new_service_proc_id,
    ranked_service_proc_id_from_env,
    serialize_service_proc_ids,
    service_proc_addr,
    service_proc_addrs,
)


def test_identities_survive_their_text() -> None:
    ids = [new_service_proc_id() for _ in range(3)]
    assert len(set(ids)) == 3
    assert {one.label for one in ids} == {"service"}
    assert deserialize_service_proc_ids(serialize_service_proc_ids(ids)) == ids
    with pytest.raises(ValueError, match="is no JSON list of identities"):
        deserialize_service_proc_ids("service<1>")


def test_a_worker_finds_its_own_by_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [new_service_proc_id() for _ in range(2)]
    monkeypatch.setenv(SERVICE_PROC_IDS_ENV, serialize_service_proc_ids(ids))
    assert ranked_service_proc_id_from_env() is None
    monkeypatch.setenv(SERVICE_PROC_RANK_ENV, "1")
    assert ranked_service_proc_id_from_env() == ids[1]
    monkeypatch.setenv("SLURM_NODEID", "0")
    assert ranked_service_proc_id_from_env(rank_env="SLURM_NODEID") == ids[0]
    for wrong in ("2", "-1", "first"):
        monkeypatch.setenv(SERVICE_PROC_RANK_ENV, wrong)
        with pytest.raises(ValueError, match="has 2 identities: give a rank from 0"):
            ranked_service_proc_id_from_env()


def test_addresses_have_them_in_front_and_are_dialled_without() -> None:
    one = new_service_proc_id()
    named = service_proc_addr("tcp://host:26600", one)
    assert named == f"{one}@tcp://host:26600"
    assert str(parse_dialled(named)) == "tcp://host:26600"
    assert identity_in(named) == str(one).partition("<")[2][:-1]
    both = f"{one}@tcp://near:26600@tcp://*:26600"
    assert str(parse_listening(both)) == "tcp://near:26600@tcp://*:26600"
    assert service_proc_addr("ipc:///tmp/a", None) == "ipc:///tmp/a"
    assert service_proc_addrs(["ipc:///tmp/a"], None) == ["ipc:///tmp/a"]
    with pytest.raises(ValueError, match="1 addresses have 2 identities"):
        service_proc_addrs(["ipc:///tmp/a"], [one, one])


def test_other_text_in_front_stays_an_error() -> None:
    for text in ("user@tcp://host:1", "service<zz>@tcp://host:1", "<1>service@tcp://host:1"):
        assert identity_in(text) == ""
        with pytest.raises(ValueError, match="names no transport"):
            parse_dialled(text)


def test_the_same_worker_twice_is_refused() -> None:
    one = new_service_proc_id()
    with pytest.raises(ValueError, match="are the same worker; give it once"):
        attach_to_workers(
            ca="trust_all_connections",
            workers=service_proc_addrs(["ipc:///a", "ipc:///b"], [one, one]),
        )
