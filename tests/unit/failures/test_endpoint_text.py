"""Texts for endpoints: the class and method of a user, and the labels of the runtime's actors."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import monarch
import monarch_jupyter
from monarch._src.actor.endpoint import actor_class
from monarch._src.failures.endpoint_text import OF_TRAINING, endpoint_text, is_label
from monarch.actor import Actor
from monarch.spmd import ElasticActor

PUBLIC = {"monarch.actor", "monarch.debug", "monarch.job", "monarch.spmd"}
BOARD_BYTES = 32  # of a name on the status board


@pytest.mark.parametrize(
    ("actor", "endpoint", "text"),
    [
        ("Trainer", "step", "Trainer.step"),
        ("package.Trainer", "step", "package.Trainer.step"),
        ("Trainer", None, "Trainer"),
        ("Map", "run", "Map.run"),
        ("the map", "run", "the map"),
        ("the map", None, "the map"),
        ("", "setup", "setup"),
        ("", None, ""),
        ("Trainer", "elastic_run", "the training of Trainer"),
        ("the training", "elastic_run", "the training"),
        ("Trainer", "elastic", "Trainer.elastic"),
    ],
)
def test_a_label_stands_for_class_and_endpoint(actor: str, endpoint: str | None, text: str) -> None:
    assert endpoint_text(actor, endpoint) == text


def test_the_methods_that_an_elastic_mesh_calls_are_those_of_elastic_actors() -> None:
    methods = {name for name in vars(ElasticActor) if name.startswith("elastic_")}
    assert methods == OF_TRAINING


def _actors_of_the_product() -> list[type[Actor]]:
    for package in (monarch, monarch_jupyter):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".programs." not in module.name and "__main__" not in module.name:
                try:
                    importlib.import_module(module.name)
                except ImportError:  # of a library that is not installed
                    continue
    found, kinds = set[type[Actor]](), [Actor]
    while kinds:
        below = kinds.pop().__subclasses__()
        kinds += below
        found.update(below)
    return [one for one in found if one.__module__.partition(".")[0].startswith("monarch")]


def test_each_actor_that_a_user_does_not_spawn_has_a_label() -> None:
    public = {
        value
        for name in PUBLIC
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, type)
    }
    actors = _actors_of_the_product()
    bases = {base for one in actors for base in one.__mro__[1:]}
    internal = [one for one in actors if one not in public and one not in bases]
    assert len(internal) > 8
    for one in internal:
        name = actor_class(one).name
        assert is_label(name), f"{one} has no __monarch_label__"
        assert len(name.encode()) <= BOARD_BYTES


def test_a_class_that_a_user_derives_has_its_own_name() -> None:
    from monarch._src.mesh.map.worker import Map

    class Mine(Map):
        pass

    assert actor_class(Map).name == "the map"
    assert actor_class(Mine).name == "Mine"
