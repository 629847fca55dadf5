"""The table of the host agent's parts, which names them in strings."""

from __future__ import annotations

from importlib import import_module

import pytest

from monarch._src.host.parts import Part
from monarch._src.programs.agent import PARTS


@pytest.mark.parametrize("name", sorted(set(PARTS.values())))
def test_every_part_in_the_table_can_be_imported(name: str) -> None:
    module, _, attribute = name.partition(":")
    assert issubclass(getattr(import_module(module), attribute), Part)
