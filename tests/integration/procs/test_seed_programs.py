"""Whole programs as users write them, in tests/integration/seeds: run as scripts, to the end."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.integration.programs import run

SEEDS = Path(__file__).parents[1] / "seeds"

SAYS = {
    "getting_started": """
        [11, 11, 11, 11]
        0 11
        1 11
        2 16
        3 16
        16
        [11, 111, 216, 316]
        ZeroDivisionError
        654
    """,
    "ping_pong": """
        ping hit the last of 1001 balls, 501 of them its own
        pong ping pong ping pong ping
    """,
    "parameter_server": """
        steps of each: [50, 50, 50, 50]
        updates: 200
        learned: [2.0, -3.0, 0.5]
    """,
    "dining_philosophers": """
        fed: [0, 1, 2, 3, 4]
        uses: [40, 40, 40, 40, 40]
    """,
    "data_parallel": """
        {'hosts': 0/2, 'gpus': 0/2} 3.0 1.0
        {'hosts': 0/2, 'gpus': 1/2} 3.0 1.0
        {'hosts': 1/2, 'gpus': 0/2} 3.0 1.0
        {'hosts': 1/2, 'gpus': 1/2} 3.0 1.0
        batches: 240
        told: 4 4 better: True
    """,
    "pipeline": """
        lines: [40, 40, 40]
        actors 80
        and 40
        are 40
        is 40
        made 80
        mesh 40
        of 80
        procs 80
        send 40
        the 80
        handled: [40, 40, 40, 40, 40, 40]
    """,
}


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("name", SAYS)
def test_a_seed_program_runs_to_its_end_and_says_what_it_should(name: str, tmp_path: Path) -> None:
    source = (SEEDS / f"{name}.py").read_text()
    status, out, err = run(tmp_path, source, command=[sys.executable, "-W", "error"])
    assert (status, err) == (0, "")
    assert lines(out) == lines(SAYS[name])


def test_there_is_a_test_for_every_seed_program() -> None:
    assert sorted(SAYS) == sorted(path.stem for path in SEEDS.glob("*.py"))


@pytest.mark.parametrize("name", SAYS)
def test_a_seed_program_needs_only_the_public_actor_api(name: str) -> None:
    used: set[str] = set()
    for node in ast.walk(ast.parse((SEEDS / f"{name}.py").read_text())):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            used.add(node.module or ".")
    ours = {module for module in used if module.partition(".")[0] not in sys.stdlib_module_names}
    assert ours == {"monarch.actor"}
