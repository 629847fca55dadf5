"""Mocks of actor classes: spawned in their place, here and by actors on ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, context, endpoint, get_or_spawn_controller
from monarch.testing import patch_actor

Spawn = Callable[..., ProcMesh]


class Model(Actor):
    """The one that tests do without."""

    def __init__(self, size: int = 1) -> None:
        self.size = size  # pyright: ignore[reportAttributeAccessIssue]

    @endpoint
    def answer(self) -> str:
        return "real"


class FakeModel(Actor):
    """Takes its place."""

    def __init__(self, size: int = 1) -> None:
        self.size = size  # pyright: ignore[reportAttributeAccessIssue]

    @endpoint
    def answer(self) -> str:
        return f"fake {self.size}"


class Server(Actor):
    """Spawns the model itself, on its own proc."""

    @endpoint
    def ask(self) -> str:
        model: Any = context().actor_instance.proc.spawn("model", Model, 3)
        return model.answer.call_one().get()


@pytest.fixture
def procs(spawn_procs: Spawn) -> ProcMesh:
    return spawn_procs({"gpus": 2}, name="workers")


def test_a_mock_is_spawned_in_the_place_of_a_class_within_the_block(procs: ProcMesh) -> None:
    with patch_actor(Model, FakeModel):
        model = procs.spawn("model", Model, 2)
        assert model.answer.call().get().values() == ["fake 2"] * 2
    assert procs.spawn("model", Model).answer.call().get().values() == ["real"] * 2
    assert model.answer.call().get().values() == ["fake 2"] * 2


def test_actors_on_ranks_spawn_the_mock_too(procs: ProcMesh) -> None:
    with patch_actor(Model, FakeModel):
        server = procs.spawn("server", Server)
        assert server.ask.call().get().values() == ["fake 3"] * 2


def test_a_controller_may_be_mocked(procs: ProcMesh) -> None:
    with patch_actor(Model, FakeModel):
        found = get_or_spawn_controller("model of the test", Model, 5).get()
        assert found.answer.call_one().get() == "fake 5"


def test_blocks_nest_and_a_function_may_be_decorated(procs: ProcMesh) -> None:
    class Other(FakeModel):
        pass

    @patch_actor(Model, Other)
    def spawned() -> Any:
        return procs.spawn("inner", Model, 1)

    @patch_actor(Model, FakeModel)
    async def later() -> Any:
        async with patch_actor(Model, Other):
            return procs.spawn("later", Model, 1)

    assert spawned.__name__ == "spawned"
    with patch_actor(Model, FakeModel):
        inner = spawned()
        outer = procs.spawn("outer", Model, 1)
    assert "Other" in repr(inner)
    assert "FakeModel" in repr(outer)
    assert "Other" in repr(asyncio.run(later()))


@pytest.mark.parametrize(
    ("original", "mock", "text"),
    [
        (int, FakeModel, "original is an actor class"),
        (Model, "FakeModel", "mock is an actor class"),
    ],
)
def test_only_actor_classes_are_mocked(original: Any, mock: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        patch_actor(original, mock)


def test_classes_of_a_script_are_mocked_on_ranks_as_well(run_python: Callable[..., str]) -> None:
    code = """
from monarch.actor import Actor, context, endpoint, this_host

class Model(Actor):
    @endpoint
    def answer(self): return "real"

class Fake(Actor):
    @endpoint
    def answer(self): return "fake"

class Server(Actor):
    @endpoint
    def ask(self):
        return context().actor_instance.proc.spawn("model", Model).answer.call_one().get()

from monarch._src.actor.mock import patch_actor
with patch_actor(Model, Fake):
    print(*this_host().spawn_procs({"gpus": 2}).spawn("server", Server).ask.call().get().values())
"""
    assert run_python(code) == "fake fake\n"
