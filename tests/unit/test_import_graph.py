"""No module imports, through others, itself: the graph of imports is a tree of layers.

Imports for type checkers and imports inside functions count too: a reader follows them as well. An
import that hides in a string would be missing from the graph, so there is none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import monarch
import monarch_jupyter


def modules() -> dict[str, Path]:
    """Every module of both packages by its dotted name."""
    found: dict[str, Path] = {}
    for package, folder in (
        ("monarch._src", Path(monarch.__file__).parent / "_src"),
        ("monarch_jupyter", Path(monarch_jupyter.__file__).parent),
    ):
        for path in folder.rglob("*.py"):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, known: Mapping[str, object]) -> Iterator[str]:
    """The names of `known` that a module imports anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                if module in known:
                    yield module
                elif node.module is not None and node.module in known:
                    yield node.module


def cycles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The strongly connected components of more than one module (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.add(frozenset(stack[at:]))
            del stack[at:]

    for name in graph:
        if name not in order:
            visit(name)
    return found


def test_a_cycle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert cycles(graph) == {frozenset({"b", "c"})}


def test_an_import_for_type_checkers_or_in_a_function_counts() -> None:
    source = (
        "if TYPE_CHECKING:\n    from p.a import A\n"
        "def f():\n    import p.b\n    from p import c, name\n"
    )
    known: dict[str, object] = {"p": 1, "p.a": 1, "p.b": 1, "p.c": 1}
    assert sorted(imported(ast.parse(source), known)) == ["p", "p.a", "p.b", "p.c"]


def test_no_modules_import_each_other() -> None:
    files = modules()
    graph = {
        name: set(imported(ast.parse(path.read_text()), files)) - {name}
        for name, path in files.items()
    }
    assert len(graph) > 400
    assert cycles(graph) == set()


PROGRAMS = "monarch._src.programs."
"""The main programs assemble the other packages, and may name modules in strings."""
MAIN_PROGRAMS = "monarch._src.system.main_programs"
NAMES_MODULES = {
    MAIN_PROGRAMS,  # of programs that lower packages start
    "monarch._src.monarch_paths",  # of Monarch, which have names of ours and are not imported
    "monarch_jupyter",  # of its public functions, which it imports for type checkers as well
}
PATH = re.compile(r"monarch\._src(?:\.\w+)+")
OWN = ("monarch", "monarch_jupyter")


def hidden_imports(tree: ast.AST, known: Mapping[str, object]) -> Iterator[str]:
    """The strings that name a module of ours, and the imports of ours by a string."""
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in documents:
                found = PATH.findall(node.value)
                yield from (f"line {node.lineno}: {one}" for one in found if names(one, known))
        elif (
            isinstance(node, ast.Call)
            and node.args
            and called(node) in ("import_module", "__import__")
        ):
            first = node.args[0]
            start = first.values[0] if isinstance(first, ast.JoinedStr) else first
            if isinstance(start, ast.Constant) and str(start.value).split(".")[0] in OWN:
                yield f"line {node.lineno}: {ast.unparse(node)}"


def names(path: str, known: Mapping[str, object]) -> bool:
    """Whether that is a module, or a name in one."""
    return path in known or path.rpartition(".")[0] in known.keys() - {"monarch._src"}


def called(node: ast.Call) -> str:
    """The last name of the called function."""
    return ast.unparse(node.func).rpartition(".")[2]


@pytest.mark.parametrize(
    "source",
    [
        "import_module('monarch.job')",
        "importlib.import_module('monarch._src.mesh')",
        "import_module(f'monarch._src.{name}')",
        "HANDLER = 'monarch._src.mesh.client'",
        "run(['-c', 'from monarch._src.mesh.client import main; main()'])",
        "CLASS = 'monarch._src.mesh.client.ClientSession'",
    ],
)
def test_an_import_in_a_string_is_found(source: str) -> None:
    assert list(hidden_imports(ast.parse(source), modules()))


@pytest.mark.parametrize(
    "source",
    [
        "import_module('duckdb')",
        "import_module(name)",
        "SYSTEM = 'monarch._src.'",
        "def f():\n    'See `monarch._src.mesh.client`.'",
        "log = getLogger('monarch.job')",
    ],
)
def test_other_strings_are_no_imports(source: str) -> None:
    assert not list(hidden_imports(ast.parse(source), modules()))


def test_no_import_hides_in_a_string() -> None:
    files = modules()
    assert not {
        f"{name}: {one}"
        for name, path in files.items()
        if name not in NAMES_MODULES and not name.startswith(PROGRAMS)
        for one in hidden_imports(ast.parse(path.read_text()), files)
    }


def test_the_main_programs_that_others_start_exist() -> None:
    files = modules()
    named = set(PATH.findall(files[MAIN_PROGRAMS].read_text())) - {PROGRAMS.rstrip(".")}
    assert len(named) == 6
    assert all(one.startswith(PROGRAMS) and one in files for one in named)
