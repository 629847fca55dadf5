"""A plugin of pytest: a tutorial that nbmake executes has outputs of the stored kinds.

    python -m pytest -p scripts.compare_outputs --nbmake notebooks

Runs in: the process of pytest. nbmake executes a copy of each notebook, in a folder of its own, and
writes the outputs into the copy. The rule is that of `scripts/output_kinds.py`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from scripts.output_kinds import complaint, differences


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Execute a copy of a notebook, and compare its outputs with the stored ones."""
    if not getattr(item, "nbmake", False):
        return (yield)
    # Where they are needed, because they take seconds to load.
    import nbformat
    from nbmake.nb_result import NotebookError, NotebookResult
    from nbmake.pytest_items import NotebookFailedException, NotebookItem

    assert isinstance(item, NotebookItem)
    path = Path(item.filename)
    stored = nbformat.read(path, as_version=4)
    option = item.config.option
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        copy = shutil.copy(path, folder)
        item.filename, given = copy, option.overwrite
        option.overwrite = True
        try:
            result = yield
        finally:
            item.filename, option.overwrite = str(path), given
        new = nbformat.read(copy, as_version=4)
    found = list(differences(stored, new))
    if found:
        said = complaint(str(path.relative_to(item.config.rootpath)), found)
        error = NotebookError(said.partition("\n")[0], said, found[0].cell)
        raise NotebookFailedException(NotebookResult(new, error))
    return result
