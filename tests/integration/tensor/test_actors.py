"""Actors that get tensors of a mesh as arguments, and whose tensors stay on the ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import monarch
from monarch._src.tensor.ranks.forwarded_calls import waiting
from monarch.actor import (
    Actor,
    ActorError,
    ProcMesh,
    as_endpoint,
    current_rank,
    endpoint,
)
from tests.conftest import Faults
from tests.integration.programs import run

pytestmark = pytest.mark.slow


class Model(Actor):
    """Has a tensor of its own, and computes with those of the mesh."""

    def __init__(self) -> None:
        self.kept: Any = None

    @endpoint
    def total(self, x: Any, *, scale: float = 1.0) -> float:
        """The sum of a tensor."""
        return float(x.sum()) * scale

    @endpoint
    def keep(self, batch: dict[str, Any]) -> None:
        """Keep a tensor, and add to it in place."""
        self.kept = batch["x"]
        self.kept.add_(1)

    @endpoint
    def kept_values(self) -> list[float]:
        """The elements of the tensor that the actor keeps."""
        values: list[float] = self.kept.tolist()
        return values

    @endpoint
    def forward(self, x: Any, named: dict[str, Any]) -> dict[str, Any]:
        """Tensors in a tree."""
        return {"y": x * 2, "all": [named["b"] + current_rank().rank]}

    @endpoint(propagate=lambda x: x)
    def tripled(self, x: Any) -> Any:
        """A tensor whose shape the client knows."""
        return x * 3

    @endpoint
    def made(self) -> Any:
        """A tensor made on the rank."""
        return torch.full((2,), float(current_rank().rank))

    @endpoint
    def failing(self, x: Any) -> Any:
        """Raise on rank 1."""
        if current_rank().rank == 1:
            raise ValueError("a bad batch")
        return x

    def plain(self, x: Any) -> float:
        """No endpoint."""
        return float(x.max())

    @endpoint
    def leave(self, x: Any) -> None:
        """End this actor."""
        raise SystemExit(3)


class Later(Actor):
    """An actor with a loop."""

    @endpoint
    async def total(self, x: Any) -> float:
        """The sum of a tensor."""
        return float(x.sum())


@pytest.fixture(scope="module")
def models(pair: ProcMesh) -> Any:
    """One on each rank."""
    return pair.spawn("models", Model)


@pytest.fixture
def x(pair: ProcMesh) -> Any:
    """1 on the first rank, 2 on the second, three times."""
    with pair.activate():
        return torch.ones(3) * (pair.rank_tensor("gpus") + 1)


def test_each_actor_gets_the_tensor_of_its_rank(pair: ProcMesh, models: Any, x: Any) -> None:
    assert models.total.call(x, scale=10).get().values() == [30.0, 60.0]
    assert models.total.choose(x).get() in (3.0, 6.0)
    assert pair.spawn("later", Later).total.call(x).get().values() == [3.0, 6.0]
    answers = [models.total.call(x) for _ in range(5)]
    assert [answer.get().values() for answer in answers] == [[3.0, 6.0]] * 5


def test_a_slice_of_the_tensor_goes_to_a_slice_of_the_actors(models: Any, x: Any) -> None:
    assert models.slice(gpus=1).total.call_one(x.slice_mesh(gpus=1)).get() == 6.0


def test_the_actor_gets_the_tensor_itself_in_the_order_of_the_program(models: Any, x: Any) -> None:
    models.keep.broadcast({"x": x})
    models.total.call(x).get()  # the broadcast was before it, for each actor
    x.mul_(10)
    # Each rank has multiplied its tensor before it answers.
    assert [monarch.inspect(x, gpus=rank).tolist() for rank in (0, 1)] == [[20.0] * 3, [30.0] * 3]
    assert models.kept_values.call().get().values() == [[20.0] * 3, [30.0] * 3]


def test_tensors_that_it_returns_stay_on_the_ranks(pair: ProcMesh, models: Any, x: Any) -> None:
    with pair.activate():
        found = models.forward.rref(x, {"b": torch.ones(2)})
        assert (found["y"].shape, found["all"][0].shape) == ((3,), (2,))
        total = found["y"].sum() + found["all"][0].sum()
        assert monarch.inspect(total, gpus=1).item() == 16.0
        assert monarch.inspect(models.tripled.rref(x), gpus=1).tolist() == [6.0] * 3
        assert monarch.inspect(models.made.rref(), gpus=1).tolist() == [1.0, 1.0]
    assert monarch.inspect(models.tripled.rref(x)).tolist() == [3.0] * 3  # by its argument


def test_a_method_that_is_no_endpoint_is_called_as_one(models: Any, x: Any) -> None:
    assert as_endpoint(models.plain).call(x).get().values() == [1.0, 2.0]


def test_an_error_names_the_actor_and_its_rank(pair: ProcMesh, models: Any, x: Any) -> None:
    with pytest.raises(
        ActorError, match=r"^Model\.failing on pair\[gpus=1\] raised ValueError: a bad batch"
    ) as caught:
        models.failing.call(x).get()
    assert isinstance(caught.value.exception, ValueError)
    with (
        pair.activate(),
        pytest.raises(
            monarch.RemoteException, match=r"^Model\.failing failed on rank 1 .*: a bad batch"
        ),
    ):
        monarch.inspect(models.failing.rref(x) * 2, gpus=1)
    assert models.total.call(x).get().values() == [3.0, 6.0]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda m, x: m.slice(gpus=0).total.call_one(x), r"on pair \{gpus: 2\}, and the actors on"),
        (lambda m, x: m.total.call(x, 1, 2), "too many positional arguments"),
        (lambda m, x: m.made.rref(), "no device mesh is active"),
        (lambda m, x: m.total.call(x, scale=threading.Lock()), "cannot pickle"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_sent(
    models: Any, x: Any, ask: Callable[[Any, Any], Any], said: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        ask(models, x)
    assert models.total.call(x).get().values() == [3.0, 6.0]


def test_actors_with_tensors_answer_in_a_stream(models: Any, x: Any) -> None:
    found = [one.get(timeout=60) for one in models.total.stream(x)]
    assert sorted(found) == [3.0, 6.0]
    assert models.total.choose(x).get(timeout=60) in (3.0, 6.0)


def test_tensors_of_another_mesh_are_refused(
    models: Any, spawn_procs: Callable[..., ProcMesh]
) -> None:
    other = spawn_procs({"gpus": 2}, name="other", preload=("torch", "torch.distributed"))
    with other.activate():
        y = torch.ones(2)
    with pytest.raises(ValueError, match=r"tensor.to_mesh\(...\), or send their values"):
        models.total.call(y)


def test_an_actor_that_ends_is_told_and_keeps_no_tensor(
    pair: ProcMesh, models: Any, x: Any, faults: Faults
) -> None:
    faulty = pair.spawn("faulty", Model)
    with pytest.raises((ActorError, monarch.actor.SupervisionError)):
        faulty.leave.call(x).get()
    faults.take()
    assert monarch.inspect(x, gpus=1).tolist() == [2.0] * 3
    with pytest.raises((ActorError, monarch.actor.SupervisionError)):
        faulty.total.call(x).get()
    with pair.activate():
        while monarch.remote(waiting).call().get().values() != [0, 0]:
            pass  # the actor may still clean up
    assert models.total.call(x).get().values() == [3.0, 6.0]


AT_ONCE = """
    import torch, monarch
    from monarch.actor import Actor, endpoint, this_host

    class Model(Actor):
        @endpoint
        def one(self):
            return float(torch.ones(3).sum())

    procs = this_host().spawn_procs({"gpus": 2})
    model = procs.spawn("model", Model)
    with procs.activate():
        x = torch.ones(3)
        answer = model.one.call()
        print(monarch.inspect(x).tolist(), answer.get().values())
"""


def test_an_actor_and_the_tensors_may_import_torch_at_the_same_time(tmp_path: Path) -> None:
    assert run(tmp_path, AT_ONCE) == (0, "[1.0, 1.0, 1.0] [3.0, 3.0]\n", "")


MODELS = """
import monarch.tensors, torch
from monarch.actor import Actor, endpoint

class Model(Actor):
    @endpoint
    def total(self, x):
        return float(x.sum())
"""
OF_A_MODULE = """
    import models, torch
    from monarch.actor import this_host

    def wait_long_for_turns():
        from monarch._src.system import imports

        imports.LONGEST_WAIT_S = 3600.0

    procs = this_host().spawn_procs(
        {{"gpus": 2}}, bootstrap=wait_long_for_turns, preload={preload}
    )
    model = procs.spawn("model", models.Model)
    with procs.activate():
        print(model.total.call(torch.ones(3)).get().values())
"""


@pytest.mark.parametrize("preload", [[], ["torch"]])
def test_the_module_of_an_actor_may_import_the_tensors_at_the_same_time(
    tmp_path: Path, preload: list[str]
) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    assert run(tmp_path, OF_A_MODULE.format(preload=preload)) == (0, "[3.0, 3.0]\n", "")
