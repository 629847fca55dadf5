"""What a client says of its imports: which libraries, and which of them its program names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from monarch._src.mesh import client_imports as of_client
from monarch._src.mesh.client_imports import client_imports, named_by_program

USER = "installed_user"
CODE = "class Model: pass\ndef fit(): pass\nMODEL = Model()\n"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A library of two packages and a module, imported."""
    name = "unit_library"
    for package in (name, f"{name}/part", f"{name}/unused"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(CODE)
    (tmp_path / name / "leaf.py").write_text("")
    monkeypatch.setattr(of_client, "LIBRARIES", frozenset([name]))
    installed = (*of_client._installed(), f"{tmp_path}/")
    monkeypatch.setattr(of_client, "_installed", lambda: installed)
    monkeypatch.syspath_prepend(tmp_path)
    for module in (name, f"{name}.part", f"{name}.leaf"):
        import_module(module)
    yield name
    for module in [one for one in sys.modules if one.startswith((name, USER))]:
        del sys.modules[module]


def name_it(patch: pytest.MonkeyPatch, value: object) -> None:
    """Have a module of the program name that value."""
    patch.setitem(globals(), "a_name", value)


def test_nothing_is_said_of_a_client_without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_client, "LIBRARIES", frozenset(["no_such_library"]))
    assert client_imports(["/lib"], {}) is None


def test_packages_are_listed_in_the_order_of_their_imports(library: str) -> None:
    found = client_imports(["/lib"], {"A": None})
    assert found is not None
    assert found.modules == [library, f"{library}.part"]
    assert (found.needed, found.path, found.env) == ([], ["/lib"], {"A": None})


@pytest.mark.parametrize("attribute", ["", "part", "Model", "fit", "MODEL", "part.Model"])
def test_what_the_program_names_is_needed(
    library: str, monkeypatch: pytest.MonkeyPatch, attribute: str
) -> None:
    value: object = sys.modules[library]
    for name in filter(None, attribute.split(".")):
        value = getattr(value, name)
    name_it(monkeypatch, value)
    found = client_imports([], {})
    assert found is not None
    assert found.needed == [library, f"{library}.part"]


def test_what_only_an_installed_module_names_is_not_needed(library: str, tmp_path: Path) -> None:
    (tmp_path / f"{USER}.py").write_text(f"import {library}\n")
    import_module(USER)
    assert named_by_program() == set()


def test_a_library_that_is_just_being_imported_is_left_out(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys.modules[library], "__spec__", SimpleNamespace(_initializing=True, name=library)
    )
    assert client_imports([], {}) is None


def test_objects_of_the_program_run_no_code_when_they_are_looked_at(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Touchy:
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"{name} was read")

    name_it(monkeypatch, Touchy())
    monkeypatch.setitem(sys.modules, "odd", Touchy())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, f"{library}.odd", Touchy())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "nothing", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "without_file", ModuleType("without_file"))
    assert named_by_program() == set()
    assert client_imports([], {}) is not None
