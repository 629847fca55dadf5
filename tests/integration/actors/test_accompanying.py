"""What a front end sends along with actors takes effect where they live, before they begin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch import frontend, observe
from monarch.actor import Actor, ProcMesh, context, endpoint, this_host, this_proc
from tests.integration.sample_actors import Echo


class Note:
    """Unpickled, it notes in the environment which actor it has come with."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return _note, (self.text,)


def _note(text: str) -> None:
    os.environ["NOTED"] = f"{text} {context().actor_instance.name}"


class Broken:
    """Cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _break, ()


def _break() -> None:
    raise ImportError("it is not here")


class Noting(Actor):
    def __init__(self) -> None:
        self.noted = os.environ.get("NOTED")

    @endpoint
    def at_the_begin(self) -> str | None:
        return self.noted


@pytest.fixture
def accompany() -> Iterator[Callable[[Callable[[ProcMesh], object]], None]]:
    yield frontend.accompany_actors
    frontend.accompany_actors(None)


def test_what_comes_along_is_there_before_the_constructor(
    spawn_procs: Callable[..., ProcMesh], accompany: Callable[..., None]
) -> None:
    procs = spawn_procs({"gpus": 2})
    accompany(lambda mesh: Note(f"{mesh.uid} {len(mesh)}"))
    noting = procs.slice(gpus=1).spawn("noting", Noting)
    assert noting.at_the_begin.call_one().get(timeout=60) == f"{procs.uid} 1 noting"


def test_an_actor_begins_without_what_cannot_be_used_there_and_says_so(
    spawn_procs: Callable[..., ProcMesh],
    accompany: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    procs = spawn_procs(name="workers")
    accompany(lambda mesh: Broken())
    echo = procs.spawn("echo", Echo)
    assert echo.same.call_one(3).get(timeout=60) == 3
    observe.flush_output()
    said = "an extra that was sent with the actor 'echo' on 'workers' cannot be used here"
    assert said in capfd.readouterr().err


def test_nothing_comes_along_with_actors_of_the_client_itself(
    accompany: Callable[..., None],
) -> None:
    accompany(lambda mesh: Note("here"))
    noting = this_proc().spawn("noting", Noting)
    assert noting.at_the_begin.call_one().get(timeout=60) is None
    noting.stop().get(timeout=60)


class Nested(Actor):
    def __init__(self) -> None:
        self.noting = this_host().spawn_procs(name="inner").spawn("inner", Noting)

    @endpoint
    def what_came(self) -> str | None:
        return self.noting.at_the_begin.call_one().get(timeout=60)


def test_what_came_goes_on_with_what_an_actor_spawns(
    spawn_procs: Callable[..., ProcMesh], accompany: Callable[..., None]
) -> None:
    procs = spawn_procs(name="workers")
    accompany(lambda mesh: Note(mesh.name))
    nested = procs.spawn("nested", Nested)
    assert nested.what_came.call_one().get(timeout=60) == "workers inner"


def test_what_comes_along_is_there_before_a_bootstrap_function(
    spawn_procs: Callable[..., ProcMesh], accompany: Callable[..., None]
) -> None:
    accompany(lambda mesh: Note(mesh.name))

    def boot() -> None:
        os.environ["AT_BOOT"] = os.environ["NOTED"]

    procs = spawn_procs({"gpus": 2}, bootstrap=boot, name="workers")
    accompany(None)
    noting = procs.spawn("noting", AtBoot)
    assert noting.noted.call().get(timeout=60).values() == ["workers bootstrap"] * 2


class AtBoot(Actor):
    @endpoint
    def noted(self) -> str:
        return os.environ["AT_BOOT"]


def test_a_bootstrap_function_runs_without_what_cannot_be_used_there(
    spawn_procs: Callable[..., ProcMesh],
    accompany: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    accompany(lambda mesh: Broken())
    procs = spawn_procs(bootstrap=print, name="workers")
    assert procs.initialized.get(timeout=60)
    observe.flush_output()
    said = "an extra that was sent with the bootstrap function of 'workers' cannot be used here"
    assert said in capfd.readouterr().err
