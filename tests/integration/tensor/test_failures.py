"""Operations that fail on ranks, and ranks that die."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import ProcMesh, SupervisionError
from tests.conftest import Faults
from tests.integration.tensor.conftest import TORCH

pytestmark = pytest.mark.slow


def test_a_failure_poisons_what_depends_on_it_and_names_its_line(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.ones(3)
        index = torch.tensor([0, 5])
        bad = x[index]  # the line that fails
        worse = (bad * 2).sum()
        good = x + 1
    with pytest.raises(monarch.RemoteException) as raised:
        monarch.inspect([good, worse])
    error = raised.value
    assert (error.rank, error.point, error.operation) == (0, {"gpus": 0}, "index.Tensor")
    assert error.filename == __file__
    assert error.source == "bad = x[index]  # the line that fails"
    assert isinstance(error.exception, IndexError)
    assert "index 5 is out of bounds" in str(error)
    assert f"line {error.line} of {__file__}" in str(error)
    assert monarch.inspect(good).tolist() == [2.0] * 3
    assert pickle.loads(pickle.dumps(error)).source == error.source


def test_a_failed_write_poisons_every_view_of_the_memory(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.ones(4)
        view, other = x.view(2, 2), torch.ones(4)
        x.index_fill_(0, torch.tensor([9]), 3.0)
    with pytest.raises(monarch.RemoteException, match="index_fill_"):
        monarch.inspect(view)
    assert monarch.inspect(other).tolist() == [1.0] * 4


def fails_on_one(x: Any, rank: Any) -> Any:
    """For ranks."""
    if int(rank) == 1:
        raise ValueError("rank 1 does not want to")
    return x * 2


def test_a_rank_without_a_value_fails_a_collective_on_its_peers_too(pair: ProcMesh) -> None:
    function = monarch.remote(fails_on_one, propagate=lambda x, rank: x)
    with pair.activate():
        x: Any = torch.ones(2)
        half = function(x, pair.rank_tensor("gpus"))
        reduced = half.reduce("gpus")
        moved = half.slice_mesh(gpus=1).to_mesh(pair.slice(gpus=0))
    assert monarch.inspect(half, gpus=0).tolist() == [2.0] * 2
    for tensor in (reduced, moved):
        with pytest.raises(monarch.RemoteException, match="rank 1 does not want to") as raised:
            monarch.inspect(tensor)
        assert raised.value.rank == 1
        assert raised.value.source == 'half = function(x, pair.rank_tensor("gpus"))'
    assert monarch.inspect(x.reduce("gpus")).tolist() == [2.0] * 2


def test_a_rank_without_a_value_fails_only_that_one_of_many_combined_together(
    pair: ProcMesh,
) -> None:
    function = monarch.remote(fails_on_one, propagate=lambda x, rank: x)
    with pair.activate():
        x = torch.ones(2)
        half = function(x, pair.rank_tensor("gpus"))
        first, failed, last = monarch.reduce([x, half, x * 3], "gpus")
        (alone,) = monarch.reduce([half], "gpus")
    assert [monarch.inspect(one).tolist() for one in (first, last)] == [[2.0] * 2, [6.0] * 2]
    for tensor in (failed, alone):
        for rank in range(2):
            with pytest.raises(monarch.RemoteException, match="rank 1 does not want to"):
                monarch.inspect(tensor, gpus=rank)


def test_a_backward_that_fails_names_the_line_of_the_program(pair: ProcMesh) -> None:
    with pair.activate():
        weight = torch.ones(3, requires_grad=True)
        (weight * 2)[torch.tensor([7])].sum().backward()
    with pytest.raises(monarch.RemoteException) as raised:
        monarch.inspect(weight.grad)
    assert raised.value.source == "(weight * 2)[torch.tensor([7])].sum().backward()"


def test_a_dead_rank_ends_what_waits_and_a_slice_goes_on(faulty: ProcMesh, faults: Faults) -> None:
    with faulty.activate():
        x: Any = torch.ones(2)
        assert monarch.inspect(x.reduce()).tolist() == [3.0] * 2
        pid = monarch.remote(os.getpid).call().get().item(gpus=2)

        def die(tensor: Any, rank: Any) -> Any:
            if int(rank) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return tensor

        gone = monarch.remote(die, propagate=lambda x, rank: x)(x, faulty.rank_tensor("gpus"))
        waiting = gone.reduce()
        with pytest.raises((monarch.RemoteException, SupervisionError), match=r"faulty\[gpus=2\]"):
            monarch.inspect(waiting)
        assert pid in {failure.pid for failure in faults.take().failures}
        with pytest.raises(SupervisionError, match="slice_mesh"):
            x + 1
        assert monarch.inspect(x).tolist() == [1.0] * 2  # what lives can still be read
    part = x.slice_mesh(gpus=slice(0, 2))
    assert monarch.inspect((part + 1).reduce(), gpus=1).tolist() == [4.0] * 2


def test_several_slices_go_on_after_a_death(
    spawn_procs: Callable[..., ProcMesh], faults: Faults
) -> None:
    procs = spawn_procs({"dp": 2, "tp": 2}, name="four", preload=TORCH)
    with procs.activate():
        rank = procs.rank(("dp", "tp"))
        assert monarch.inspect(rank.reduce()).item() == 6
        pid = monarch.remote(os.getpid).call().get().item(dp=1, tp=1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError):
        monarch.remote(_wait, propagate=lambda x: x).call(rank).get(timeout=60)
    assert pid in {failure.pid for failure in faults.take().failures}
    first, second = rank.slice_mesh(dp=0), rank.slice_mesh(tp=0)
    for _ in range(2):
        assert monarch.inspect(first.reduce(), tp=1).item() == 1
        assert monarch.inspect(second.reduce(), dp=1).item() == 2
    there = rank.slice_mesh(dp=0, tp=1).to_mesh(procs.slice(dp=1, tp=0))
    assert monarch.inspect(there).item() == 1


def test_a_mesh_that_was_stopped_says_so(faulty: ProcMesh) -> None:
    with faulty.activate():
        x = torch.ones(2)
        faulty.stop().get(timeout=60)
        for use in (lambda: x + 1, lambda: monarch.fetch_shard(x), lambda: torch.ones(2)):
            with pytest.raises(SupervisionError, match="has been stopped"):
                use()
    with pytest.raises(SupervisionError, match="has been stopped"):
        faulty.activate()


def test_an_interrupted_fetch_leaves_the_mesh_usable(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.ones(2)
        wait = monarch.remote(_wait, propagate=lambda x: x)(x)
        with pytest.raises(TimeoutError):
            monarch.fetch_shard(wait).get(timeout=0.01)
        assert monarch.inspect(wait).tolist() == [1.0] * 2


def _wait(x: Any) -> Any:
    import threading

    threading.Event().wait(0.5)
    return x


SINGULAR: dict[str, Callable[[Any], Any]] = {
    "inv": torch.linalg.inv,
    "cholesky": torch.linalg.cholesky,
    "solve": lambda x: torch.linalg.solve(x, x),
    "lu_factor": lambda x: torch.linalg.lu_factor(x)[0],
    "inv of a batch": lambda x: torch.linalg.inv(torch.stack([x, x]))[1],
}


@pytest.mark.parametrize("name", SINGULAR)
def test_a_check_of_torch_that_fails_poisons_what_it_checks(pair: ProcMesh, name: str) -> None:
    with pair.activate():
        x = torch.eye(2) * pair.rank_tensor("gpus")  # of zeros on the first rank
        found = SINGULAR[name](x)
        more = found.sum()
        other = torch.ones(1)
    for tensor in (found, more):
        with pytest.raises(monarch.RemoteException, match="linalg") as raised:
            monarch.inspect(tensor)
        assert raised.value.filename == __file__
        assert isinstance(raised.value.exception, RuntimeError)
    assert monarch.inspect(more, gpus=1).isfinite()
    assert monarch.inspect([x, other])[1].tolist() == [1.0]
