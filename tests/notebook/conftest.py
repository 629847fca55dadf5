"""A kernel for the tests of a module; every test finds it without meshes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebook.kernel import Kernel, running_kernel


@pytest.fixture(scope="module")
def module_kernel() -> Iterator[Kernel]:
    # Not pytest's own folder: the names of sockets have to be short.
    with tempfile.TemporaryDirectory() as folder, running_kernel(Path(folder)) as kernel:
        yield kernel


@pytest.fixture
def kernel(module_kernel: Kernel) -> Iterator[Kernel]:
    yield module_kernel
    module_kernel.ok("%monarch stop --all")


@pytest.fixture
def fresh_kernel() -> Iterator[Kernel]:
    """A kernel that no other test uses."""
    with tempfile.TemporaryDirectory() as folder, running_kernel(Path(folder)) as kernel:
        yield kernel
