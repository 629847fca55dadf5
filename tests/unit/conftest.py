"""Programs that run until the test is over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture
def python_program() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program in a fresh interpreter that finds what this one finds; killed at the end."""
    with ExitStack() as running:

        def start(program: str, *arguments: str) -> subprocess.Popen[str]:
            path = os.pathsep.join(filter(None, sys.path))
            started = subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            running.enter_context(started)
            running.callback(started.kill)
            return started

        yield start
