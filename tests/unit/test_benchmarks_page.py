"""The commands of the page of benchmarks, as they are run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.page import PAGE, commands
from tests.benchmarks.payload_sizes import with_threshold

TEXT = """
All of them: `python -m tests.benchmarks.page FOLDER`.
`python -m tests.benchmarks.one`: text. `python -m tests.benchmarks.two --peer PEER_PYTHON --n 2`
`python -m tests.benchmarks.both --torchmonarch PYTHON --ray PYTHON --rounds 2`, then
`python -m tests.benchmarks.three --peer PEER_PYTHON --ray RAY_PYTHON` and `python -m other`
"""


def test_a_command_gets_the_interpreters_of_its_peers() -> None:
    assert commands(TEXT, {"torchmonarch": "/tm", "ray": "/ray"}) == [
        ["-m", "tests.benchmarks.one"],
        ["-m", "tests.benchmarks.two", "--peer", "/tm", "--n", "2"],
        ["-m", "tests.benchmarks.both", "--torchmonarch", "/tm", "--ray", "/ray", "--rounds", "2"],
        ["-m", "tests.benchmarks.three", "--peer", "/tm", "--ray", "/ray"],
    ]


def test_a_command_runs_without_a_peer_that_is_absent() -> None:
    found = commands(TEXT, {"torchmonarch": None, "ray": "/ray"})
    assert found[1] == ["-m", "tests.benchmarks.two", "--n", "2"]
    assert found[2] == ["-m", "tests.benchmarks.both", "--ray", "/ray", "--rounds", "2"]


def test_the_page_names_programs_that_exist() -> None:
    found = commands(PAGE.read_text(), {"torchmonarch": None, "ray": None})
    assert len(found) > 15
    assert ["-m", "tests.benchmarks.page", "FOLDER"] not in found
    assert [one[1] for one in found if importlib.util.find_spec(one[1]) is None] == []


def test_a_copy_of_the_package_has_the_threshold_that_is_measured(tmp_path: Path) -> None:
    path = with_threshold("16", tmp_path)
    program = "from monarch._src.wire.segment_refs import SEGMENT_FROM; print(SEGMENT_FROM)"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(path)},
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == f"{16 << 10}\n"
