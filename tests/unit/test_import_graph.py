"""No module imports, through others, itself: the graph of imports is a tree of layers.

Imports for type checkers and imports inside functions count too: a reader follows them as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import monarch
import monarch_jupyter

# Cycles that remain: public classes of which each has a method that returns the other. This set
# may only shrink.
KNOWN = frozenset({
    # `ProcMesh.host_mesh` is typed as the HostMesh that spawned it.
    frozenset({
        "monarch._src.mesh.client", "monarch._src.mesh.host_mesh", "monarch._src.mesh.proc_mesh",
    }),
    # `Extent.region`, a public name.
    frozenset({"monarch._src.shape.extent", "monarch._src.shape.region"}),
})  # fmt: skip


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
                elif node.module in known:
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
    known = dict.fromkeys(("p", "p.a", "p.b", "p.c"))
    assert sorted(imported(ast.parse(source), known)) == ["p", "p.a", "p.b", "p.c"]


def test_no_modules_import_each_other() -> None:
    files = modules()
    graph = {
        name: set(imported(ast.parse(path.read_text()), files)) - {name}
        for name, path in files.items()
    }
    assert len(graph) > 400
    assert cycles(graph) == KNOWN
