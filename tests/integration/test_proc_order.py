"""The file of what procs run is what they run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from tests.benchmarks.proc_order import ROOT

COMPARES = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from monarch.actor import shutdown_context
from tests.benchmarks import proc_order
print(json.dumps(proc_order.missing(proc_order.of_a_proc())))
shutdown_context().get()
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has no qualified name there")
def test_what_a_proc_runs_is_in_the_file_to_nine_tenths(run_python: Callable[..., str]) -> None:
    absent, count = json.loads(run_python(COMPARES))
    ours = [name for name in absent if name.startswith("monarch.")]
    assert count > 100
    assert len(ours) < count / 10, (
        "write it anew: python -m tests.benchmarks.proc_order --write", ours,
    )  # fmt: skip
