"""`monarch.remote`: functions of the program on the ranks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

import monarch
from monarch.actor import Accumulator, ActorError, Channel, ProcMesh, send

pytestmark = pytest.mark.slow


def test_results_stay_on_the_ranks_in_their_tree(pair: ProcMesh) -> None:
    function = monarch.remote(lambda x, n, *, scale: ([x + n, None], {"sum": (x * scale).sum()}))
    with pair.activate():
        (more, nothing), named = function(torch.ones(2), 3, scale=pair.rank_tensor("gpus"))
    assert nothing is None
    assert more.shape == (2,)
    assert monarch.inspect(more).tolist() == [4.0, 4.0]
    assert monarch.inspect(named["sum"], gpus=1).item() == 2.0


def test_a_function_runs_here_once_for_each_combination_of_shapes(pair: ProcMesh) -> None:
    seen: list[Any] = []

    def double(x: Any, n: int = 0) -> Any:
        seen.append(tuple(x.shape))
        return x * 2

    function = monarch.remote(double)
    with pair.activate():
        for size in (2, 3, 2, 2):
            function(torch.ones(size))
        function(torch.ones(2), 1)
    assert seen == [(2,), (3,), (2,)]


def test_an_argument_that_is_returned_is_the_same_memory(pair: ProcMesh) -> None:
    def fill(x: Any) -> Any:
        x.fill_(7)
        return x[0], x

    with pair.activate():
        x = torch.zeros(2)
        row, same = monarch.remote(fill)(x)
        row.add_(1)
    assert monarch.inspect([x, same])[0].tolist() == [8.0, 7.0]


def test_shapes_that_depend_on_values_are_asked_for(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.arange(5.0)
        with pytest.raises(RuntimeError, match="propagate='inspect'"):
            monarch.remote(lambda x: x[x > 2])(x)
        found = monarch.remote(lambda x: x[x > 2], propagate="inspect")(x)
        assert found.shape == (2,)
        cached = monarch.remote(lambda x: x.unique(), propagate="cached")
        assert (cached(x).shape, cached(x).shape) == ((5,), (5,))
        with pytest.raises(monarch.RemoteException, match="propagation said"):
            monarch.inspect(cached(x * 0))  # one value, where five were cached
    assert monarch.inspect(found, gpus=1).tolist() == [3.0, 4.0]


def test_a_propagation_that_is_wrong_is_named(pair: ProcMesh) -> None:
    with pair.activate():
        wrong = monarch.remote(lambda x: x.sum(), propagate=lambda x: x)(torch.ones(2))
    with pytest.raises(monarch.RemoteException, match="its propagation said"):
        monarch.inspect(wrong)


def test_values_come_back_by_call_and_other_results_are_refused(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.ones(3)
        pids = list(monarch.remote(os.getpid).call().get().values())
        assert len({*pids, os.getpid()}) == 3
        with pytest.raises(TypeError, match=r"returns int, .*\.call"):
            monarch.remote(lambda x: 3)(x)
        with pytest.raises(ValueError, match="mesh of one rank"):
            monarch.remote(os.getpid).call_one()
        add = monarch.remote(lambda x, a: float(x.sum()) + a.sum())
        where = pair.rank_tensor("gpus") + x
        assert (
            monarch.call_on_shard_and_fetch(add, where, np.ones(4), shard={"gpus": 1}).get() == 10
        )
        with pytest.raises(ActorError, match="division by zero"):
            monarch.remote(lambda: 1 / 0).call().get()
        with pair.slice(gpus=1).activate():
            assert monarch.remote(os.getpid).call_one().get() == pids[1]


def test_one_rank_is_chosen_and_all_ranks_answer_in_a_stream(pair: ProcMesh) -> None:
    total = monarch.remote(lambda x, add: float(x.sum()) + add)
    with pair.activate():
        x = torch.ones(3) * (1 + pair.rank_tensor("gpus"))
        chosen = {total.choose(x, 1).get(timeout=60) for _ in range(40)}
        assert chosen == {4.0, 7.0}
        assert sorted(one.get(timeout=60) for one in total.stream(x, add=2)) == [5.0, 8.0]
        tensors = monarch.remote(lambda x: x * 2)
        (first, second) = sorted(float(one.get(timeout=60)[0]) for one in tensors.stream(x))
        assert (first, second) == (2.0, 4.0)
        with pair.slice(gpus=1).activate():
            assert monarch.remote(os.getpid).choose().get(timeout=60) != os.getpid()
            assert len(list(monarch.remote(os.getpid).stream())) == 1
        with pytest.raises(ActorError, match="division by zero"):
            monarch.remote(lambda: 1 / 0).choose().get(timeout=60)
        for one in monarch.remote(lambda: 1 / 0).stream():
            with pytest.raises(ActorError, match="division by zero"):
                one.get(timeout=60)
    for adverb in ("choose", "stream"):
        with pytest.raises(ValueError, match="no device mesh is active"):
            getattr(monarch.remote(os.getpid), adverb)()


def test_answers_of_a_function_are_folded_or_go_to_a_port(pair: ProcMesh) -> None:
    total = monarch.remote(lambda x: float(x.sum()))
    with pair.activate():
        x = torch.ones(3) * (1 + pair.rank_tensor("gpus"))
        folded = Accumulator(total, 0.0, lambda found, one: found + one).accumulate(x)
        assert folded.get(timeout=60) == 9.0
        port, receiver = Channel[float].open()
        send(total, (x,), {}, port)
        found = [receiver.recv().get(timeout=60) for _ in range(2)]
        assert sorted(found) == [3.0, 6.0]
        send(total, (x,), {}, port, selection="choose")
        assert receiver.recv().get(timeout=60) in (3.0, 6.0)
        send(monarch.remote(torch.Tensor.zero_), (x,), {})
        assert monarch.inspect(x, gpus=1).tolist() == [0.0] * 3


def test_a_function_is_found_by_its_path(pair: ProcMesh) -> None:
    with pair.activate():
        assert monarch.inspect(monarch.remote("torch.square")(torch.full((1,), 3.0))).item() == 9.0
        with pytest.raises(ValueError, match="no such function here"):
            monarch.remote("torch.no_such")(torch.ones(1))


def test_functions_keep_gradients_to_themselves(pair: ProcMesh) -> None:
    def slope(x: Any) -> Any:
        x = x.clone().requires_grad_()
        (x**3).sum().backward()
        return x.grad

    with pair.activate():
        found = monarch.remote(slope, propagate=lambda x: x)(torch.full((2,), 2.0))
    assert not found.requires_grad
    assert monarch.inspect(found).tolist() == [12.0, 12.0]


def test_without_a_mesh_or_with_bad_arguments_it_says_so(pair: ProcMesh) -> None:
    with pytest.raises(ValueError, match="no device mesh is active"):
        monarch.remote(os.getpid).call()
    with pytest.raises(ValueError, match="propagate='no'"):
        monarch.remote(os.getpid, propagate="no")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="not 3"):
        monarch.remote(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="made by monarch"):
        monarch.call_on_shard_and_fetch(os.getpid)  # pyright: ignore[reportArgumentType]
