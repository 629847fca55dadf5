"""Streams run side by side on each rank, and wait for each other where tensors are borrowed.

Functions of the program hold a stream back: a rank's end of a FIFO opens once the other end does.
"""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import ProcMesh, RestartedError, SupervisionError
from monarch.observe import RankRestarting
from monarch.supervision import Restart
from tests.conftest import Faults
from tests.integration.tensor.conftest import TORCH

pytestmark = pytest.mark.slow


def values(tensor: Any) -> list[Any]:
    return [monarch.inspect(tensor, gpus=rank).tolist() for rank in range(2)]


def _wait(gate: list[str], tensor: Any) -> Any:
    """On a rank: go on once `_open` runs there. Returns a copy of the tensor as it is then."""
    with open(gate[int(os.environ["RANK_OF_TEST"])]) as end:
        end.read()
    return tensor.clone()


def _wait_and_double(gate: list[str], tensor: Any) -> Any:
    """The same, and double the tensor."""
    with open(gate[int(os.environ["RANK_OF_TEST"])]) as end:
        end.read()
    tensor.mul_(2)
    return tensor.clone()


def _open(gate: list[str], tensor: Any) -> Any:
    """On a rank: let `_wait` go on."""
    with open(gate[int(os.environ["RANK_OF_TEST"])], "w") as end:
        end.write("go on")
    return tensor.clone()


def _number(rank: Any) -> Any:
    os.environ["RANK_OF_TEST"] = str(int(rank))
    return rank.clone()


def _same(_gate: list[str], tensor: Any) -> Any:
    return torch.empty_like(tensor)


wait = monarch.remote(_wait, propagate=_same)
wait_and_double = monarch.remote(_wait_and_double, propagate=_same)
open_gate = monarch.remote(_open, propagate=_same)


@pytest.fixture
def gate(pair: ProcMesh, tmp_path: Path) -> list[str]:
    """The FIFOs of the ranks."""
    with pair.activate():
        numbered = monarch.remote(_number, propagate=lambda rank: rank.clone())
        assert values(numbered(pair.rank_tensor("gpus"))) == [0, 1]
    paths = [str(tmp_path / f"gate{rank}") for rank in range(2)]
    for path in paths:
        os.mkfifo(path)
    return paths


@pytest.fixture
def x(pair: ProcMesh) -> Any:
    """A tensor of the stream `main`: 1 on the first rank, 2 on the second."""
    with pair.activate():
        return torch.ones(2) + pair.rank_tensor("gpus")


def test_one_stream_goes_on_while_another_waits(pair: ProcMesh, gate: list[str], x: Any) -> None:
    with pair.activate(), monarch.Stream("held").activate():
        held = wait(gate, torch.zeros(1))
    assert values(x + 1) == [[2.0, 2.0], [3.0, 3.0]]
    assert values(x.reduce("gpus")) == [[3.0, 3.0]] * 2
    open_gate(gate, x)
    assert values(held) == [[0.0]] * 2


def test_collectives_of_two_streams_do_not_wait_for_each_other(
    pair: ProcMesh, gate: list[str], x: Any
) -> None:
    comm = monarch.Stream("comm")
    there, borrow = comm.borrow(x)
    with pair.activate(), comm.activate():
        slow = (wait(gate, there) + there).reduce("gpus")
    for _ in range(20):
        assert values(x.reduce("gpus")) == [[3.0, 3.0]] * 2
    open_gate(gate, x)
    assert values(slow) == [[6.0, 6.0]] * 2
    borrow.drop()


def test_a_borrower_waits_for_what_the_lender_does_before(
    pair: ProcMesh, gate: list[str], x: Any
) -> None:
    wait_and_double(gate, x)
    there, borrow = monarch.Stream("comm").borrow(x)
    seen = there + 0
    with pair.activate(), monarch.Stream("third").activate():
        open_gate(gate, torch.zeros(1))
    assert values(seen) == [[2.0, 2.0], [4.0, 4.0]]
    borrow.drop()


def test_a_lender_waits_for_what_the_borrower_reads(
    pair: ProcMesh, gate: list[str], x: Any
) -> None:
    there, borrow = monarch.Stream("comm").borrow(x)
    seen = wait(gate, there)
    borrow.drop()
    x.add_(100)
    with pair.activate(), monarch.Stream("third").activate():
        open_gate(gate, torch.zeros(1))
    assert values(seen) == [[1.0, 1.0], [2.0, 2.0]]
    assert values(x) == [[101.0, 101.0], [102.0, 102.0]]


def test_a_lender_waits_for_what_the_borrower_writes(
    pair: ProcMesh, gate: list[str], x: Any
) -> None:
    there, borrow = monarch.Stream("comm").borrow(x, mutable=True)
    wait_and_double(gate, there)
    borrow.drop()
    seen = x + 1
    with pair.activate(), monarch.Stream("third").activate():
        open_gate(gate, torch.zeros(1))
    assert values(seen) == [[3.0, 3.0], [5.0, 5.0]]


def test_tensors_that_the_program_lets_go_of_live_until_all_streams_are_done(
    pair: ProcMesh, gate: list[str]
) -> None:
    comm = monarch.Stream("comm")
    with pair.activate():
        there, borrow = comm.borrow(torch.ones(2) * 5)
        held = wait(gate, there)
        total = held + there
        borrow.drop()
        del there, borrow, held
        other = torch.ones(2)
        for _ in range(300):  # more than a batch
            other = other * 1
        with monarch.Stream("third").activate():
            open_gate(gate, torch.zeros(1))
    assert values(total) == [[10.0, 10.0]] * 2
    assert values(other) == [[1.0, 1.0]] * 2


def test_a_copy_to_another_stream_has_the_value_of_its_line(
    pair: ProcMesh, gate: list[str], x: Any
) -> None:
    comm = monarch.Stream("comm")
    x.slice_mesh(gpus=0).to_mesh(pair, stream=comm)  # connects the ranks
    with pair.activate(), comm.activate():
        wait(gate, torch.zeros(1))
    same = x.to_mesh(pair, stream=comm)
    first = x.slice_mesh(gpus=0).to_mesh(pair, stream=comm)
    part = x.slice_mesh(gpus=1).to_mesh(pair.slice(gpus=1), stream=comm)
    x.add_(100)
    assert values(x) == [[101.0, 101.0], [102.0, 102.0]]
    open_gate(gate, x)
    assert repr(same).endswith("stream 'comm'>")
    assert values(same) == [[1.0, 1.0], [2.0, 2.0]]
    assert values(first + same) == [[2.0, 2.0], [3.0, 3.0]]
    assert monarch.inspect(part).tolist() == [2.0, 2.0]
    back = same.to_mesh(pair, stream=monarch.Stream("main"))
    assert values(back + x) == [[102.0, 102.0], [104.0, 104.0]]


# --- failures -------------------------------------------------------------------------------------


def _refuse(tensor: Any) -> None:
    raise ValueError(f"no {tuple(tensor.shape)}")


refuse = monarch.remote(_refuse, propagate=torch.empty_like)


def test_a_failure_goes_to_the_borrower_and_no_further(pair: ProcMesh, x: Any) -> None:
    comm = monarch.Stream("comm")
    failed = refuse(x)
    there, borrow = comm.borrow(failed)
    mine, own = comm.borrow(x)
    with pytest.raises(Exception, match=r"no \(2,\)"):
        monarch.inspect(there + 1)
    assert values(mine + 1) == [[2.0, 2.0], [3.0, 3.0]]
    own.drop()
    borrow.drop()
    assert values(x.add_(1)) == [[2.0, 2.0], [3.0, 3.0]]


def test_a_write_that_fails_on_the_borrower_takes_the_value_of_the_lender(
    pair: ProcMesh, x: Any
) -> None:
    comm = monarch.Stream("comm")
    view, other = x[:1], x * 1
    there, borrow = comm.borrow(x, mutable=True)
    there.copy_(refuse(there))
    borrow.drop()
    for one in (x, view, x + 1):
        with pytest.raises(Exception, match=r"no \(2,\)"):
            monarch.inspect(one)
    assert values(other) == [[1.0, 1.0], [2.0, 2.0]]


def test_a_borrowed_element_whose_place_only_ranks_know_is_written(pair: ProcMesh) -> None:
    comm = monarch.Stream("comm")
    with pair.activate():
        whole = torch.zeros(2, 3)
        row = whole[pair.rank_tensor("gpus")]
    there, borrow = comm.borrow(row, mutable=True)
    there.add_(1)
    borrow.drop()
    assert values(whole) == [[[1.0] * 3, [0.0] * 3], [[0.0] * 3, [1.0] * 3]]
    there, borrow = comm.borrow(row, mutable=True)
    there.copy_(refuse(there))
    borrow.drop()
    with pytest.raises(Exception, match=r"no \(3,\)"):
        monarch.inspect(whole)


def test_a_borrow_is_no_part_of_a_compiled_function(pair: ProcMesh, x: Any) -> None:
    comm = monarch.Stream("comm")

    @monarch.compile
    def lends(tensor: Any) -> Any:
        _, borrow = comm.borrow(tensor)
        borrow.drop()
        return tensor + 1

    with pytest.raises(RuntimeError, match=r"a borrow.*borrow the tensor before the call"):
        lends(x)
    assert values(x.add_(1)) == [[2.0, 2.0], [3.0, 3.0]]


def test_a_stopped_mesh_has_no_borrow_to_wait_for(
    spawn_procs: Callable[..., ProcMesh],
) -> None:
    mesh = spawn_procs({"gpus": 2}, name="stopped", preload=TORCH)
    with mesh.activate():
        tensor = torch.ones(2)
    _, borrow = monarch.Stream("comm").borrow(tensor)
    mesh.stop().get(timeout=60)
    borrow.drop()


def test_a_death_ends_the_waits_of_all_streams(faulty: ProcMesh, faults: Faults) -> None:
    comm = monarch.Stream("comm")

    def die(tensor: Any) -> Any:
        if int(tensor) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return tensor.clone()

    with faulty.activate():
        rank = faulty.rank_tensor("gpus")
        there, borrow = comm.borrow(rank)
        assert monarch.inspect(there.reduce("gpus")).item() == 3  # the ranks are connected
        total = monarch.remote(die, propagate=torch.clone)(there).reduce("gpus")
        with pytest.raises(Exception, match=r"gpus=2.*SIGKILL"):
            monarch.fetch_shard(total, gpus=0).get(timeout=60)
        assert faults.take().failures[0].rank == 2
        part = rank.slice_mesh(gpus=slice(0, 2))
        assert monarch.inspect(part + 1, gpus=1).item() == 2
        with pytest.raises(SupervisionError, match="gpus=2"):
            comm.borrow(rank)
        with pytest.raises(SupervisionError, match="gpus=2"):
            borrow.drop()
        part_there, borrow = comm.borrow(part)
        assert monarch.inspect(part_there.reduce("gpus")).item() == 1
        borrow.drop()


@pytest.fixture
def renewed(spawn_procs: Callable[..., ProcMesh]) -> ProcMesh:
    """Two procs that are started again."""
    return spawn_procs({"gpus": 2}, name="renewed", preload=TORCH, restart=Restart(at_most=20))


def test_a_borrow_over_a_restart_ends_and_later_ones_work(
    renewed: ProcMesh, restarts: queue.SimpleQueue[RankRestarting]
) -> None:
    comm = monarch.Stream("comm")
    with renewed.activate():
        for turn in range(3):
            old = torch.ones(2) * turn
            there, borrow = comm.borrow(old, mutable=True)
            kept, lease = comm.borrow(torch.ones(1))
            assert values(there + 0) == [[float(turn)] * 2] * 2
            pid: int = monarch.remote(os.getpid).call().get(timeout=60).item(gpus=1)
            os.kill(pid, signal.SIGKILL)
            assert restarts.get(timeout=60).failure.rank == 1
            borrow.drop()
            lease.drop()
            with pytest.raises(RestartedError, match="was made before that process was restarted"):
                comm.borrow(old)
            assert monarch.inspect(old, gpus=0).tolist() == [turn] * 2
            new = torch.ones(2) + renewed.rank_tensor("gpus")
            there, borrow = comm.borrow(new, mutable=True)
            there.reduce_("gpus")
            borrow.drop()
            assert values(new) == [[3.0, 3.0]] * 2
            del kept
