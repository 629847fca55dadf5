"""The cluster of Slurm that the tests of a module share. Without Slurm they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import slurm


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Cluster]:
    """A cluster whose nodes are all this host. A module with other nodes has a fixture instead."""
    if slurm.why_not():
        pytest.skip(slurm.why_not())
    with slurm.cluster_up(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def cluster(
    running_cluster: slurm.Cluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[slurm.Cluster]:
    """The cluster, used by this process for one test, which leaves no job there."""
    with slurm.used(running_cluster, monkeypatch):
        yield running_cluster
