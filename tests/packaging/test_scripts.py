import shutil
import sys
from pathlib import Path

import nbformat
import pytest

from tests.packaging.building import ROOT, run

pytestmark = pytest.mark.slow

PIXEL = (
    "import base64\n"
    "from IPython.display import Image, display\n"
    "display(Image(data=base64.b64decode("
    "'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=')))"
)

MACHINE = (
    "import sys\nprint('on', socket.gethostname(), 'in', tempfile.gettempdir(), 'with', sys.prefix)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notebooks").mkdir()
    return tmp_path


def write(folder: Path, *cells: nbformat.NotebookNode) -> Path:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = folder / "notebooks" / "a.ipynb"
    nbformat.write(
        nbformat.v4.new_notebook(cells=list(cells), metadata={"kernelspec": kernel}), path
    )
    return path


def code(source: str, *tags: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})


def test_the_demo_prints_sources_and_outputs_in_order(folder: Path) -> None:
    notebook = write(folder, nbformat.v4.new_markdown_cell("# Title"), code("print('out')\n6 * 7"))
    done = run(sys.executable, ROOT / "scripts" / "show_notebook.py", notebook, cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines[:5] == ["# Title", ">>> print('out')", ">>> 6 * 7", "out", "42"]


def test_the_demo_prints_the_error_of_the_first_cell_that_fails_and_ends(folder: Path) -> None:
    notebook = write(
        folder, code("1 / 0", "raises-exception"), code("int('x')"), code("print('never')")
    )
    done = run(sys.executable, ROOT / "scripts" / "show_notebook.py", notebook, cwd=folder)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stdout
    assert "ValueError: invalid literal for int() with base 10: 'x'" in done.stdout
    assert "Cell 1 of" in done.stderr
    assert "never" not in done.stdout


def test_the_demo_says_where_it_saved_a_picture(folder: Path) -> None:
    done = run(
        sys.executable,
        ROOT / "scripts" / "show_notebook.py",
        write(folder, code(PIXEL)),
        cwd=folder,
    )
    assert "[picture saved as build/demo/a-0-0.png]" in done.stdout
    assert (folder / "build/demo/a-0-0.png").read_bytes().startswith(b"\x89PNG")


def test_an_executed_notebook_may_be_committed_and_one_that_changed_since_may_not(
    folder: Path,
) -> None:
    path = write(folder, code("import socket, tempfile"), code(MACHINE))
    check = ROOT / "scripts" / "check_notebooks.py"
    assert "outputs are missing or of older cells" in run(sys.executable, check, cwd=folder).stdout
    done = run(sys.executable, ROOT / "scripts" / "execute_notebooks.py", path, cwd=folder)
    assert done.returncode == 0, done.stderr
    executed = nbformat.read(path, as_version=4)
    (output,) = executed.cells[1].outputs
    assert output.text == "on laptop in /tmp with ~/.venv\n"
    assert "execution" not in executed.cells[1].metadata
    done = run(sys.executable, check, cwd=folder)
    assert (done.returncode, "1 notebooks, 0 complaints" in done.stdout) == (0, True)
    executed.cells[0].source = "import socket, tempfile, sys"
    nbformat.write(executed, path)
    done = run(sys.executable, check, cwd=folder)
    assert done.returncode == 1
    assert "outputs are missing or of older cells: run `make notebooks`" in done.stdout


def test_a_notebook_with_widgets_or_private_imports_is_refused(folder: Path) -> None:
    shown = code("1")
    data = {"application/vnd.jupyter.widget-view+json": {}, "text/html": "x", "text/plain": "x"}
    shown.outputs = [nbformat.v4.new_output("display_data", data=data)]
    write(folder, shown, code("from monarch._src.net import node"))
    done = run(sys.executable, ROOT / "scripts" / "check_notebooks.py", cwd=folder)
    assert done.returncode == 1
    assert "cell 0 shows a widget" in done.stdout
    assert "cell 1 uses monarch._src" in done.stdout


@pytest.mark.parametrize("cores", [2, 4])
def test_every_test_is_run_once_and_what_fails_in_any_lane_is_told(
    tmp_path: Path, cores: int
) -> None:
    script = tmp_path / "scripts" / "run_tests.py"
    script.parent.mkdir()
    shutil.copy(ROOT / "scripts" / "run_tests.py", script)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    # In place of nbmake, whose import takes seconds, and of pytest-timeout.
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--nbmake', action='store_true')\n"
        "    parser.addoption('--nbmake-timeout')\n"
        "    parser.addoption('--timeout', type=int)\n"
    )
    ran = tmp_path / "ran"
    for name, ends in {
        "tests/unit/core/test_a.py": "raise ValueError",
        "tests/integration/data/test_softroce.py": "pass",
        "tests/integration/data/test_e.py": "pass",
        "tests/unit/test_leaks.py": "pass",
        "tests/browser/test_b.py": "raise ValueError",
        "tests/new/deep/test_c.py": "pass",
        "tests/fault/test_f.py": "raise ValueError",
        "notebooks/test_d.py": "raise KeyError",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "def test_it(pytestconfig):\n"
            "    assert pytestconfig.getoption('--timeout') > 0, 'what hangs would not fail'\n"
            f"    with open({str(ran)!r}, 'a') as file:\n"
            f"        print({name!r}, file=file)\n"
            f"    {ends}\n"
        )
    on_cores = (
        f"import os, runpy, sys; os.cpu_count = lambda: {cores}; "
        "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    )
    done = run(
        sys.executable, "-c", on_cores, script, "--import-mode=importlib", "-q",
        cwd=tmp_path, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    names = ran.read_text().split()
    assert sorted(names) == sorted(set(names))
    assert len(names) == 8
    assert names[-1] == "tests/unit/test_leaks.py"
    assert done.returncode == 1
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED pytest")]
    assert len(failed) == 4, "one a lane, and the notebooks"
    for name in ("tests/browser", "tests/fault", "notebooks", "tests/unit"):
        own = [name, f"{name}:", f"{tmp_path}/{name}", f"{tmp_path}/{name}:"]
        assert sum(any(word in own for word in line.split()) for line in failed) == 1, name


def test_marked_tests_are_left_out_of_every_lane_when_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "run_tests.py"
    script.parent.mkdir()
    shutil.copy(ROOT / "scripts" / "run_tests.py", script)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nmarkers = ['slow: s', 'browser: b', 'quick: q']\n"
    )
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--nbmake', action='store_true')\n"
        "    parser.addoption('--nbmake-timeout')\n"
        "    parser.addoption('--timeout', type=int)\n"
    )
    ran = tmp_path / "ran"
    for folder in ("unit", "fault", "browser"):
        path = tmp_path / "tests" / folder / "test_it.py"
        path.parent.mkdir(parents=True)
        path.write_text("import pytest\n" + "".join(
            f"@pytest.mark.{marker}\n"
            f"def test_{marker}():\n"
            f"    open({str(ran)!r}, 'a').write('{folder}/{marker} ')\n"
            for marker in ("slow", "browser", "quick")
        ))  # fmt: skip
    leaving_out = ("--leave-out", "slow", "--leave-out", "browser")
    run(
        sys.executable, script, *leaving_out, "--import-mode=importlib", "-q",
        cwd=tmp_path, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert sorted(ran.read_text().split()) == ["browser/quick", "fault/quick", "unit/quick"]
