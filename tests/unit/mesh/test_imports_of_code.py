"""Which libraries code for ranks imports, found without running it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest

from monarch._src.mesh import client_imports as of_client
from monarch._src.mesh.client_imports import (
    client_imports,
    note_imports_in,
    note_imports_of,
    noted_libraries,
)
from monarch.actor import Actor, endpoint


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries `big` and `vast` are installed and not imported; nothing is noted yet."""
    libraries = frozenset(("big", "vast", "absent"))
    monkeypatch.setattr(of_client, "LIBRARIES", libraries)
    monkeypatch.setattr(of_client, "_noted", {})
    found = {"big": object(), "vast": object(), "absent": None}
    monkeypatch.setattr(of_client, "find_spec", found.__getitem__)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


class Base(Actor):
    @staticmethod
    def load() -> Any:
        import big.models  # pyright: ignore[reportMissingImports]

        return big.models


class OfBase(Base):
    @endpoint
    def step(self) -> int:
        return 1


class InEndpoint(Actor):
    @endpoint
    def step(self) -> Any:
        from big import nn  # pyright: ignore[reportMissingImports]

        return nn


class InNested(Actor):
    @endpoint
    def step(self) -> Any:
        def inner() -> Any:
            def innermost() -> Any:
                import big as torch  # pyright: ignore[reportMissingImports]

                return torch

            return innermost()

        return inner()


class InProperty(Actor):
    @property
    def model(self) -> Any:
        import big  # pyright: ignore[reportMissingImports]

        return big


class BehindWrapper(Actor):
    @endpoint
    @wrapped
    def step(self) -> Any:
        import big  # pyright: ignore[reportMissingImports]

        return big


class NamesOnly(Actor):
    """An attribute with the name of a library is no import of it."""

    @endpoint
    def step(self, value: Any) -> Any:
        return value.big(), value.vast


@pytest.mark.parametrize("kind", [OfBase, InEndpoint, InNested, InProperty, BehindWrapper])
def test_what_the_methods_of_a_class_import_is_noted(kind: type) -> None:
    note_imports_of(kind)
    assert noted_libraries() == ["big"]


def test_a_name_that_is_not_imported_is_not_noted() -> None:
    note_imports_of(NamesOnly)
    assert noted_libraries() == []


def test_what_a_function_imports_is_noted_and_what_is_not_installed_is_left_out() -> None:
    def fit() -> Any:
        import absent  # pyright: ignore[reportMissingImports]
        import vast  # pyright: ignore[reportMissingImports]

        return vast, absent

    note_imports_of(fit)
    assert noted_libraries() == ["vast"]


@pytest.mark.parametrize(
    "source",
    [
        "import big", "import json, big.nn as nn", "from big.nn import Linear",
        "def f():\n    from big import nn", "async with x:\n    import big\nawait y",
    ],
)  # fmt: skip
def test_what_a_cell_imports_is_noted(source: str) -> None:
    note_imports_in(source)
    assert noted_libraries() == ["big"]


@pytest.mark.parametrize("source", ["big", "from . import big", "import bigger", "import big as"])
def test_other_texts_are_left_alone(source: str) -> None:
    note_imports_in(source)
    assert noted_libraries() == []


def test_noted_libraries_are_imported_for_the_next_mesh_which_waits_for_them() -> None:
    assert client_imports(["/lib"], {}) is None
    note_imports_in("import vast\nimport big")
    found = client_imports(["/lib"], {})
    assert found is not None
    assert found.modules == found.needed == ["vast", "big"]


def test_a_library_that_the_client_has_imported_since_counts_as_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note_imports_in("import big")
    monkeypatch.setitem(sys.modules, "big", None)  # type: ignore[arg-type]
    assert noted_libraries() == []
