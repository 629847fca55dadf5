"""A library that cells on ranks import is there for the ranks of later meshes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.notebook.kernel import Kernel

PACKAGE = """
import os
IMPORTED_IN = os.getpid()
"""
SHOWN = "import large, os\nIMPORTED = 'own' if large.IMPORTED_IN == os.getpid() else 'forked'"


@pytest.mark.parametrize("how", ["%%monarch on first", "%monarch autopx first"])
def test_a_library_that_a_cell_imports_on_ranks_is_there_for_the_next_mesh(
    fresh_kernel: Kernel, tmp_path: Path, how: str
) -> None:
    kernel = fresh_kernel
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "__init__.py").write_text(PACKAGE)
    kernel.ok(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "from monarch._src.mesh import client_imports\n"
        "client_imports.LIBRARIES = frozenset(['large'])"
    )
    kernel.ok("%monarch spawn first gpus=2")
    if how.startswith("%%"):
        kernel.ok(f"{how}\n{SHOWN}")
    else:
        kernel.ok(how)
        kernel.ok(SHOWN)
        kernel.ok("%monarch autopx off")
    assert kernel.value("first.pull('IMPORTED').values()") == "['own', 'own']"
    kernel.ok("%monarch spawn second gpus=2")
    kernel.ok(f"%%monarch on second\n{SHOWN}")
    assert kernel.value("second.pull('IMPORTED').values()") == "['forked', 'forked']"
    assert kernel.value("'large' in sys.modules") == "False"
