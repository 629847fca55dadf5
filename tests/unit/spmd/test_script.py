"""A script runs as `python SCRIPT` runs it, and leaves no trace in the process."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch._src.spmd.script import ScriptError, run_script


def test_a_script_has_its_arguments_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_a_script.py").write_text("VALUE = 3")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, neighbour_of_a_script as other\n"
        "from pathlib import Path\n"
        "Path(sys.argv[1]).write_text(f'{__name__} {other.VALUE} {sys.argv}')"
    )
    before = (sys.argv[:], sys.path[:], sys.modules["__main__"])
    run_script([str(script), str(tmp_path / "out"), "--lr=1"])
    del sys.modules["neighbour_of_a_script"]
    words = [str(script), str(tmp_path / "out"), "--lr=1"]
    assert (tmp_path / "out").read_text() == f"__main__ 3 {words}"
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


RUN = """
import sys
from monarch._src.spmd.script import run_script
sys.path.insert(0, sys.argv[1])
run_script(["-m", "program_of_a_test", sys.argv[1] + "/out"])
"""


def test_a_module_runs_by_its_name(tmp_path: Path, run_python: Callable[..., str]) -> None:
    (tmp_path / "program_of_a_test.py").write_text(
        "import sys\nfrom pathlib import Path\nPath(sys.argv[1]).write_text(__name__)"
    )
    run_python(RUN, str(tmp_path))
    assert (tmp_path / "out").read_text() == "__main__"


def test_a_script_may_exit_with_0_and_with_nothing(tmp_path: Path) -> None:
    for text in ("raise SystemExit", "import sys; sys.exit(0)"):
        (tmp_path / "train.py").write_text(text)
        run_script([str(tmp_path / "train.py")])


def test_another_status_is_an_error_that_travels(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(ScriptError, match=r"train\.py exited with 3$") as raised:
        run_script([str(tmp_path / "train.py")])
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.code) == (str(raised.value), 3)


@pytest.mark.parametrize("arguments", [[], ["-m"]])
def test_nothing_to_run_is_refused(arguments: list[str]) -> None:
    with pytest.raises(ValueError, match="No script or module specified"):
        run_script(arguments)


def test_a_script_that_does_not_exist_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no script '.*absent\.py' on "):
        run_script([str(tmp_path / "absent.py")])
