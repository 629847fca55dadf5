"""README's script, as a user runs it who has installed the wheel and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.notebook.test_readme import SCRIPTS, comparable
from tests.packaging.building import checked, run


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_the_script_prints_what_is_printed_below_it(
    number: int, clean: Path, tmp_path: Path
) -> None:
    source, printed = SCRIPTS[number]
    (tmp_path / "counter.py").write_text(source)
    shown = checked(run(clean, tmp_path / "counter.py", cwd=tmp_path))
    assert comparable(shown) == comparable(printed)
