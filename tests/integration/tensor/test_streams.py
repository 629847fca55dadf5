"""Streams, borrows, and gradients one at a time, on real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import monarch
from monarch.actor import ProcMesh

pytestmark = pytest.mark.slow


def values(tensor: Any) -> list[Any]:
    return [monarch.inspect(tensor, gpus=rank).tolist() for rank in range(2)]


@pytest.fixture
def x(pair: ProcMesh) -> Any:
    """A tensor of the stream `main`: 0 on the first rank, 1 on the second."""
    with pair.activate():
        return torch.zeros(2) + pair.rank_tensor("gpus")


def test_factories_make_tensors_of_the_active_stream(pair: ProcMesh) -> None:
    comm = monarch.Stream("comm")
    assert monarch.get_active_stream() == monarch.Stream("main")
    with pair.activate():
        with comm.activate() as active:
            assert monarch.get_active_stream() == active == comm
            y = torch.ones(2) * pair.rank_tensor("gpus")
        before = torch.ones(1)
    with comm.activate(), pair.activate():
        z = y + torch.ones(2)
    assert repr(z) == "<monarch.Tensor [2] float32 on pair {gpus: 2}, stream 'comm'>"
    assert "stream" not in repr(before)
    assert values(z) == [[1.0, 1.0], [2.0, 2.0]]
    assert values(z.reduce("gpus")) == [[3.0, 3.0]] * 2
    assert repr(z.slice_mesh(gpus=0)).endswith("stream 'comm'>")


def test_tensors_of_two_streams_are_refused_with_the_remedy(pair: ProcMesh, x: Any) -> None:
    with monarch.Stream("comm").activate(), pair.activate():
        y = torch.ones(2)
    with pytest.raises(ValueError, match=r"two streams of pair .*'main' and 'comm'; borrow one"):
        x + y
    with pytest.raises(ValueError, match="two streams"):
        monarch.fetch_shard([x, y])


def test_a_borrow_reads_and_neither_side_writes(x: Any) -> None:
    comm = monarch.Stream("comm")
    there, borrow = comm.borrow(x)
    total = there.reduce("gpus")
    for one in (x, there):
        with pytest.raises(ValueError, match=r"by a stream that reads it.*mutable=True"):
            one.add_(1)
    with pytest.raises(ValueError, match="cannot be written or dropped"):
        x.drop()
    with pytest.raises(ValueError, match="is borrowed by a stream"):
        x[0].add_(1)  # a view has the same memory
    assert values(x + 1) == [[1.0, 1.0], [2.0, 2.0]]
    borrow.drop()
    borrow.drop()
    with pytest.raises(ValueError, match="its borrow has been dropped; use the tensor"):
        there + 1
    assert values(total) == [[1.0, 1.0]] * 2
    x.add_(1)
    assert values(x) == [[1.0, 1.0], [2.0, 2.0]]


def test_a_mutable_borrow_writes_and_the_lender_waits(x: Any) -> None:
    comm = monarch.Stream("comm")
    there, borrow = comm.borrow(x, mutable=True)
    with borrow:
        there.reduce_("gpus")
        with pytest.raises(ValueError, match=r"by the stream 'comm', which may write to it"):
            x + 1
        with pytest.raises(ValueError, match="by the stream 'comm'"):
            monarch.Stream("third").borrow(x)
    assert values(x) == [[1.0, 1.0]] * 2


def test_several_streams_may_read_at_once(x: Any) -> None:
    first, one = monarch.Stream("a").borrow(x)
    second, two = monarch.Stream("b").borrow(x)
    with pytest.raises(ValueError, match="cannot be written"):
        monarch.Stream("c").borrow(x, mutable=True)
    one.drop()
    with pytest.raises(ValueError, match="cannot be written"):
        x.add_(1)
    assert values(second * 2) == [[0.0, 0.0], [2.0, 2.0]]
    two.drop()
    x.add_(1)
    del first


def test_a_borrowed_tensor_lives_as_long_as_its_borrow(pair: ProcMesh) -> None:
    with pair.activate():
        there, borrow = monarch.Stream("comm").borrow(torch.ones(2) * 3)
    assert values(there) == [[3.0, 3.0]] * 2
    borrow.drop()


@pytest.mark.parametrize("mutable", [False, True])
def test_neither_side_of_a_borrow_is_dropped_or_lent_on(x: Any, mutable: bool) -> None:
    there, borrow = monarch.Stream("comm").borrow(x, mutable=mutable)
    for one in (there, there[0]):
        with pytest.raises(ValueError, match=r"is borrowed, so it cannot be dropped or lent on"):
            one.drop()
        with pytest.raises(ValueError, match="borrow the tensor that was lent"):
            monarch.Stream("third").borrow(one)
    with pytest.raises(ValueError, match="borrow"):
        x.drop()
    borrow.drop()
    assert values(x + 1) == [[1.0, 1.0], [2.0, 2.0]]
    x.drop()
    x.drop()
    assert x.dropped


def test_a_stream_that_cannot_begin_leaves_the_one_before(pair: ProcMesh) -> None:
    class Stopped(Exception):
        pass

    def refuse(*_: Any) -> None:
        raise Stopped

    with pair.activate(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("monarch._src.tensor.active_mesh.channel_of", refuse)
        with pytest.raises(Stopped), monarch.Stream("comm").activate():
            pass
    assert monarch.get_active_stream() == monarch.Stream("main")


def test_what_cannot_be_borrowed_is_refused(pair: ProcMesh, x: Any) -> None:
    comm = monarch.Stream("comm")
    with pytest.raises(TypeError, match="borrow takes a tensor of a mesh, not int"):
        comm.borrow(3)
    with pytest.raises(ValueError, match="belongs to the stream 'main'; use it as it is"):
        monarch.Stream("main").borrow(x)
    with pair.activate():
        weight = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"borrow tensor\.detach\(\)"):
        comm.borrow(weight)
    gone = x * 1
    gone.drop()
    with pytest.raises(ValueError, match="was dropped"):
        comm.borrow(gone)
    with pytest.raises(ValueError, match="give a name"):
        monarch.Stream("")


def test_a_compiled_function_writes_to_no_tensor_that_is_read(x: Any) -> None:
    @monarch.compile
    def bump(tensor: Any) -> Any:
        tensor.add_(1)
        return tensor * 2

    for _ in range(3):
        bump(x)
    _, borrow = monarch.Stream("comm").borrow(x)
    with pytest.raises(ValueError, match="is borrowed by a stream"):
        bump(x)
    borrow.drop()
    assert values(bump(x)) == [[8.0, 8.0], [10.0, 10.0]]


def test_gradients_come_one_at_a_time_and_are_reduced_on_another_stream(pair: ProcMesh) -> None:
    comm = monarch.Stream("comm")
    with pair.activate():
        rank = pair.rank_tensor("gpus") + 1.0
        first, last = (torch.ones(2, requires_grad=True) for _ in range(2))
        unused = torch.ones(1, requires_grad=True)
        loss = ((first * 3).sum() + (last * 5).sum()) * rank
        found: list[Any] = []
        for gradient in monarch.grad_generator(loss, [last, first, unused]):
            if gradient is None:
                found.append(None)
                continue
            there, borrow = comm.borrow(gradient, mutable=True)
            there.reduce_("gpus", "avg")
            borrow.drop()
            found.append(gradient)
    assert found[2] is None
    assert [values(one) for one in found[:2]] == [[[7.5, 7.5]] * 2, [[4.5, 4.5]] * 2]
