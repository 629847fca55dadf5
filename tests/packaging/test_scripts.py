import os
import subprocess
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


def compared(folder: Path) -> subprocess.CompletedProcess[str]:
    """pytest over the notebooks of that folder, as `make test-all` runs it."""
    plugins = ["-p", "no:cacheprovider", "-p", "scripts.compare_outputs", "--nbmake"]
    return run(
        sys.executable, "-m", "pytest", "--rootdir", folder, *plugins, "notebooks",
        cwd=folder, env={"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )  # fmt: skip


def test_a_tutorial_whose_stored_outputs_are_of_other_kinds_fails_where_it_is_executed(
    folder: Path,
) -> None:
    asked = "from IPython.display import HTML\nprint('text')\nHTML('<b>table</b>')"
    path = write(folder, code("6 * 7"), code(asked), code("1 / 0", "raises-exception"))
    done = run(sys.executable, ROOT / "scripts" / "execute_notebooks.py", path, cwd=folder)
    assert done.returncode == 0, done.stderr
    done = compared(folder)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout
    notebook = nbformat.read(path, as_version=4)
    _, shown = notebook.cells[1].outputs
    del shown.data["text/html"]
    notebook.cells[2].outputs[0].ename = "ValueError"
    nbformat.write(notebook, path)
    stored = path.read_bytes()
    done = compared(folder)
    assert done.returncode == 1
    assert (
        "notebooks/a.ipynb: cells 1, 2: new outputs are of other kinds than the stored ones\n"
        "cell 1\n"
        "  stored: stream stdout; execute_result text/plain\n"
        "  new:    stream stdout; execute_result text/html text/plain\n"
        "cell 2\n"
        "  stored: error ValueError\n"
        "  new:    error ZeroDivisionError\n"
        "run `python scripts/execute_notebooks.py notebooks/a.ipynb`, and read what it has changed"
    ) in done.stdout
    assert path.read_bytes() == stored
    assert sorted(one.name for one in path.parent.iterdir()) == ["a.ipynb"]


def test_a_notebook_with_widgets_or_private_imports_is_refused(folder: Path) -> None:
    shown = code("1")
    data = {"application/vnd.jupyter.widget-view+json": {}, "text/html": "x", "text/plain": "x"}
    shown.outputs = [nbformat.v4.new_output("display_data", data=data)]
    write(folder, shown, code("from monarch._src.net import node"))
    done = run(sys.executable, ROOT / "scripts" / "check_notebooks.py", cwd=folder)
    assert done.returncode == 1
    assert "cell 0 shows a widget" in done.stdout
    assert "cell 1 uses monarch._src" in done.stdout
