"""What can be imported: all that is promised, nothing that starts or loads more than it needs."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import monarch

PUBLIC = [
    "monarch.actor",
    "monarch.buffers",
    "monarch.config",
    "monarch.observe",
    "monarch.rdma",
    "monarch.session",
    "monarch.spmd",
    "monarch.supervision",
    "monarch.testing",
]
HEAVY = [
    "torch", "numpy", "IPython", "ipykernel", "ipywidgets", "tornado", "traitlets",
    "jupyter_client", "asyncio", "multiprocessing", "concurrent.futures",
]  # fmt: skip

IMPORT = """
import json, os, sys, threading
import ctypes  # libffi may keep a descriptor of its own file open
before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
import importlib
importlib.import_module(sys.argv[1])
after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
heavy = sorted(name for name in json.loads(sys.argv[2]) if name in sys.modules)
print(json.dumps({"heavy": heavy, "fds": after - before, "threads": threading.active_count()}))
"""


@pytest.fixture(params=PUBLIC)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


@pytest.mark.parametrize("name", PUBLIC)
def test_importing_loads_nothing_heavy_and_starts_nothing(
    name: str, run_python: Callable[..., str]
) -> None:
    found = json.loads(run_python(IMPORT, name, json.dumps(HEAVY)))
    assert found == {"heavy": [], "fds": 0, "threads": 1}


ONLY_DEFINES = """
import json, sys
from monarch.actor import Actor, Extent, SupervisionError, concurrent_endpoint, endpoint

class Sample(Actor):
    @endpoint
    def one(self) -> int:
        return 1

print(json.dumps([name for name in ("zmq", "monarch._src.actor.runtime") if name in sys.modules]))
"""


def test_a_module_that_only_defines_actors_does_not_load_the_runtime(
    run_python: Callable[..., str],
) -> None:
    assert json.loads(run_python(ONLY_DEFINES)) == []


ONE_HOST = """
import sys
from monarch.actor import Actor, endpoint, this_host

class Sample(Actor):
    @endpoint
    def loaded(self) -> bool:
        return "zmq" in sys.modules

if __name__ == "__main__":
    sample = this_host().spawn_procs({"gpus": 1}).spawn("sample", Sample)
    print(sample.loaded.call_one().get(), "zmq" in sys.modules)
"""


def test_a_session_on_one_host_does_not_load_zeromq(run_python: Callable[..., str]) -> None:
    assert run_python(ONE_HOST) == "False False\n"


def test_all_that_is_promised_is_there(module: ModuleType) -> None:
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_promises_are_sorted_and_made_once(module: ModuleType) -> None:
    names = [name for name in module.__all__ if name != name.lower() or name[0].isalpha()]
    assert len(set(names)) == len(names)
    assert names == sorted(names)


def test_what_is_public_by_name_is_promised(module: ModuleType) -> None:
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("monarch.")
    }
    assert public <= set(module.__all__)


def test_what_is_promised_is_explained(module: ModuleType) -> None:
    promised = {name: getattr(module, name) for name in module.__all__}
    unexplained = [
        name
        for name, found in promised.items()
        if (inspect.isclass(found) or inspect.isfunction(found)) and not inspect.getdoc(found)
    ]
    assert unexplained == []


def test_every_module_says_what_it_is() -> None:
    root = Path(monarch.__file__).parent
    silent = [
        str(path.relative_to(root))
        for path in sorted(root.rglob("*.py"))
        if path.stat().st_size and not path.read_text().lstrip().startswith('"""')
    ]
    assert silent == []


def test_the_files_of_the_runtime_are_of_a_size_that_can_be_read() -> None:
    root = Path(monarch.__file__).parent
    sizes = {str(p.relative_to(root)): p.read_text().count("\n") for p in root.rglob("*.py")}
    assert {name: size for name, size in sizes.items() if size > 600} == {}
