"""`monarch attach`: a session that is kept, at a prompt or for a script, as a shell has it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.keepers import keeper, kept_name

COMMAND = "import sys; from monarch._src.cli.program import main; sys.exit(main())"
PATIENCE_S = 60.0


@pytest.fixture
def name(own_base_directory: Path, tmp_path: Path) -> Iterator[str]:
    """A session of that name whose client is gone."""
    with kept_name(own_base_directory) as found:
        with keeper(tmp_path / "keeper", found) as first:
            first.program.signal(signal.SIGKILL)
            first.program.end()
        yield found


def attached(
    folder: Path, *arguments: str, said: str = "", command: str = COMMAND
) -> tuple[int, str, str]:
    """Run it there, as its console script is: what is beside that can be imported, no more."""
    path = [p for p in sys.path if p and Path(p) != folder]
    done = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-c", command, "attach",
         *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(path)}, input=said,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_script_has_the_meshes_its_arguments_and_what_is_beside_it(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "some where"
    folder.mkdir()
    (folder / "helper.py").write_text("MORE = 5")
    (folder / "script.py").write_text(
        "import sys, helper\n"
        "print(mine.add.call(helper.MORE).get().values(), sys.argv[1:], session.name)\n"
        "sys.exit(3)\n"
    )
    for total in (6, 11):
        status, out, err = attached(tmp_path, name, str(folder / "script.py"), "a", "b c")
        assert (status, out) == (3, f"[{total}, {total}] ['a', 'b c'] {name}\n"), err


def test_a_prompt_has_them_too_and_what_is_in_this_directory(name: str, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("MORE = 5")
    lines = "import helper\nprint(mine.add.call(helper.MORE).get().values())\n"
    status, out, err = attached(tmp_path, name, said=lines)
    assert status == 0
    assert "[6, 6]" in out, err


def test_a_script_that_is_not_there_takes_nothing_up(tmp_path: Path) -> None:
    status, _, err = attached(tmp_path, "no-such-session", "nothing.py")
    assert (status, err) == (1, "monarch attach: no such script: nothing.py\n")
