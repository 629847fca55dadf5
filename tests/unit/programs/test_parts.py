"""The features of higher packages in a client: every way to a session has them."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import monarch

ROOT = Path(monarch.__file__).parent
LOADED = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print("monarch._src.mesh.client" in sys.modules)
"""


def has_parts(path: Path) -> bool:
    """Whether a public module, or the package that it is in, imports `monarch.actor`."""
    package = path.parent / "__init__.py"
    if path != package and path.parent != ROOT and has_parts(package):
        return True
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import) and any(one.name == "monarch.actor" for one in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "monarch.actor":
            return True
    return False


def test_public_modules_without_the_parts_can_start_no_session(
    run_python: Callable[..., str],
) -> None:
    names: list[str] = []
    for path in ROOT.rglob("*.py"):
        *parents, last = path.relative_to(ROOT).with_suffix("").parts
        if "_src" in parents or last in ("__main__", "actor") or has_parts(path):
            continue
        if "monarch._src" in path.read_text():  # the others import public modules only
            names.append(".".join(["monarch", *parents, *([] if last == "__init__" else [last])]))
    assert "monarch.config" in names
    assert run_python(LOADED, json.dumps(names)).strip() == "False"
