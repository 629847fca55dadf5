"""Which backends of a process group are aborted when its collectives end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch._src.spmd import rank_watch


class Backend:
    """A backend as torch has it, as far as it is aborted."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self._name = name
        self._error = error
        self.aborted = 0

    def name(self) -> str:
        """Its name for torch."""
        return self._name

    def abort(self) -> None:
        """Count, and raise as a backend that cannot abort does."""
        self.aborted += 1
        if self._error is not None:
            raise self._error


class Group:
    """A process group with a backend for each device."""

    def __init__(self, **backends: Backend) -> None:
        self.group_name = "0"
        self._device_types = list(backends)
        self._get_backend = backends.__getitem__


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """The groups that torch knows of."""
    known: dict[Any, Any] = {}
    c10d = SimpleNamespace(_world=SimpleNamespace(pg_map=known), ProcessGroup=Group)
    monkeypatch.setattr(rank_watch, "distributed_c10d", lambda: c10d)
    return known


def test_gloo_is_not_aborted_as_it_would_forget_the_collectives_that_wait(
    groups: dict[Any, Any],
) -> None:
    gloo, nccl = Backend("gloo"), Backend("nccl")
    groups[Group(cpu=gloo, cuda=nccl)] = None
    rank_watch.abort_groups()
    assert (gloo.aborted, nccl.aborted) == (0, 1)


def test_a_backend_of_two_devices_is_aborted_once_and_one_that_cannot_is_told(
    groups: dict[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    mpi, nccl = Backend("mpi", RuntimeError("mpi cannot abort")), Backend("nccl")
    groups[Group(cpu=mpi)] = None
    groups[Group(cuda=nccl, xpu=nccl)] = None
    rank_watch.abort_groups()
    assert (mpi.aborted, nccl.aborted) == (1, 1)
    assert "mpi cannot abort" in caplog.text
