"""Modules of the program are told from libraries by their files."""

from __future__ import annotations

import importlib.machinery
import json
from pathlib import Path

import pytest

from monarch._src.system import imports
from monarch._src.system.imports import is_of_the_program


@pytest.mark.parametrize(
    "path", [json.__file__, pytest.__file__, imports.__file__, "_ops.py", None, 3]
)
def test_libraries_and_what_has_no_file_are_not_of_the_program(path: object) -> None:
    assert not is_of_the_program(path)


def test_other_files_are_of_the_program(tmp_path: Path) -> None:
    assert is_of_the_program(__file__)
    assert is_of_the_program(str(tmp_path / f"helpers{importlib.machinery.SOURCE_SUFFIXES[0]}"))
