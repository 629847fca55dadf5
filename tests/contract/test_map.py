"""README.md of this folder: the map from rules to tests, which must not rot."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import monarch.actor

HERE = Path(__file__).parent
TESTS = HERE.parent
MAP = (HERE / "README.md").read_text()
TEST_ID = re.compile(r"`([\w/]+\.py)::(\w+)`")

API = re.findall(r"\w+", """
    Actor endpoint concurrent_endpoint as_endpoint Endpoint Future returns_future ValueMesh Point
    Extent context Context current_rank current_size current_actor_name this_host this_proc HostMesh
    ProcMesh ProcId Uid Port PortReceiver Channel send Accumulator ActorError MeshFailure
    SupervisionError unhandled_fault_hook get_or_spawn_controller attach_to_workers attach
    run_worker_loop_forever run_worker_loop_until_shutdown start_worker_loop_forever
    enable_transport ChannelTransport BootstrapCommand default_bootstrap_cmd shutdown_context
    debug_controller get_meter span traced config ActorMesh
""")  # fmt: skip


def rows(text: str) -> list[tuple[str, str]]:
    """The rows of the tables in it, without their heads."""
    cells = [line.strip("| ").split(" | ", 1) for line in text.splitlines() if line.startswith("|")]
    return [
        (first, rest[0] if rest else "")
        for first, *rest in cells
        if not first.startswith("---") and first not in ("rule", "what")
    ]


@cache
def named_tests(path: Path) -> frozenset[str]:
    """The names of the test functions of a file."""
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test_")
    )


def test_every_rule_names_a_test_that_proves_it() -> None:
    assert len(rows(MAP)) > 80
    assert [rule for rule, proof in rows(MAP) if not TEST_ID.search(proof)] == []


@pytest.mark.parametrize("file", sorted({file for file, _ in TEST_ID.findall(MAP)}))
def test_every_test_that_is_named_exists(file: str) -> None:
    named = {name for found, name in TEST_ID.findall(MAP) if found == file}
    assert named - named_tests(TESTS / file) == set()


def test_what_stands_between_backticks_as_a_proof_is_the_name_of_a_test() -> None:
    proofs = [quoted for _, proof in rows(MAP) for quoted in re.findall(r"`[^`]+`", proof)]
    assert [quoted for quoted in proofs if not TEST_ID.fullmatch(quoted)] == []


@pytest.mark.parametrize(
    "file", sorted(path.name for path in HERE.glob("test_*.py") if path.name != Path(__file__).name)
)
def test_every_test_of_this_folder_proves_a_rule(file: str) -> None:
    named = {name for found, name in TEST_ID.findall(MAP) if found == f"contract/{file}"}
    assert named_tests(HERE / file) - named == set()


def test_every_name_of_the_api_is_there() -> None:
    assert [name for name in API if not hasattr(monarch.actor, name)] == []
