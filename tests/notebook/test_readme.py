"""README's blocks, as cells and as a script: each shows what is printed below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.notebook.kernel import Kernel, Shown, running_kernel

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCK = re.compile(
    r"^```(ipython|python)\n(.*?)^```\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
BLOCKS = BLOCK.findall(README)
MORE = "every frame"  # the link below an error
# A busy machine is slow, and README shows no bars.
NO_BARS = "import monarch_jupyter.protocol.bars\nmonarch_jupyter.protocol.bars.AFTER = 1e9"
CELLS = [(source, printed) for kind, source, printed in BLOCKS if kind == "ipython"]
SCRIPTS = [(source, printed) for kind, source, printed in BLOCKS if kind == "python"]


def comparable(text: str) -> str:
    """Without what differs from machine to machine: the host, and the folder of a file."""
    text = re.sub(r" on \S+, ready", " on HOST, ready", text)
    text = re.sub(r'File "[^"]*"', 'File "FILE"', text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def seen(shown: Shown) -> str:
    """What a person reads below the cell, on a page that shows text alone."""
    data = [*shown.displays, *([shown.result] if shown.result else [])]
    texts = [one["text/plain"] for one in data if MORE not in one["text/plain"]]
    return "\n".join([shown.stdout, *texts, shown.traceback])


def test_every_block_of_code_has_its_output_printed_below_it() -> None:
    assert len(BLOCKS) == len(re.findall(r"^```i?python$", README, re.MULTILINE))
    assert CELLS[0][0].startswith("%load_ext monarch_jupyter\n")
    assert SCRIPTS


def test_cells_show_what_is_printed_below_them() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_kernel(Path(folder), loaded=False) as kernel,
    ):
        kernel.run(NO_BARS, numbered=False)
        for source, printed in CELLS:
            assert comparable(seen(kernel.run(source))) == comparable(printed), source


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_a_script_prints_what_is_printed_below_it(number: int, tmp_path: Path) -> None:
    source, printed = SCRIPTS[number]
    script = tmp_path / "counter.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=dict(os.environ),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert comparable(done.stdout) == comparable(printed)


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_a_script_runs_in_a_cell_too(number: int, fresh_kernel: Kernel) -> None:
    source, printed = SCRIPTS[number]
    assert comparable(fresh_kernel.run(source).stdout) == comparable(printed)
