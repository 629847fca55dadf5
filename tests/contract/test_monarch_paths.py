"""Private paths of Monarch that public programs import: what they find, and what is said if not."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import pickle
import re
import subprocess
import sys
import threading
import types
from typing import Any

import pytest

import monarch.actor
from monarch._src import monarch_paths
from monarch._src.monarch_paths import served
from monarch.actor import (
    Actor,
    ProcMesh,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
    get_or_spawn_controller,
)
from monarch.rdma import RDMABuffer
from tests.integration.programs import run

TABLE = [(path, name, where) for path, names in served().items() for name, where in names.items()]


@pytest.mark.parametrize(("path", "name", "where"), TABLE, ids=str)
def test_each_name_is_the_public_object_that_the_table_says(
    path: str, name: str, where: str
) -> None:
    module, _, attributes = where.partition(":")
    if module in ("monarch.simulator", "monarch.tensors", "monarch.timer"):
        pytest.importorskip("torch")
    public: Any = importlib.import_module(module)
    for attribute in attributes.split("."):
        public = getattr(public, attribute)
    space: dict[str, Any] = {}
    exec(f"from {path} import {name}", space)
    assert space[name] == public
    assert getattr(importlib.import_module(path), name) == public


def test_the_table_names_public_modules_only() -> None:
    assert [where for _, _, where in TABLE if "._src" in where] == []


LISTED = """
    monarch._rust_bindings.monarch_hyperactor: host_mesh shape channel buffers supervision mailbox
    monarch._rust_bindings.monarch_hyperactor: proc
    monarch._src.actor: actor_mesh host_mesh proc_mesh bootstrap endpoint future context supervision
    monarch._src.job: job process slurm
"""


@pytest.mark.parametrize(
    "path",
    [f"{package}.{module}" for package, modules in re.findall(r"(\S+): (.*)", LISTED)
     for module in modules.split()],
)  # fmt: skip
def test_every_module_that_public_programs_name_is_there(path: str) -> None:
    package, _, module = path.rpartition(".")
    assert served()[path]
    space: dict[str, Any] = {}
    exec(f"from {package} import {module}", space)
    assert isinstance(space[module], types.ModuleType)


ABSENT = [
    ("monarch._rust_bindings.monarch_hyperactor.mailbox", "PortRef", "use monarch.actor.Port"),
    ("monarch._rust_bindings.monarch_hyperactor.channel", "BindSpec", "enable_transport takes"),
    ("monarch._rust_bindings.monarch_hyperactor.pytokio", "PythonTask", "returns_future"),
    ("monarch._rust_bindings.monarch_hyperactor", "alloc", "nothing of this package stands for it"),
    ("monarch", "mast_reserve", "use a job of monarch.job"),
    ("monarch", "world_mesh", r"this_host\(\).spawn_procs"),
    ("monarch._src.actor.proc_mesh", "proc_mesh", r"this_host\(\).spawn_procs"),
    ("monarch._src.actor.actor_mesh", "_Lazy", "nothing of this package stands for it"),
]


@pytest.mark.parametrize(("path", "name", "said"), ABSENT)
def test_a_name_without_an_equivalent_is_absent_and_its_import_says_what_to_use(
    path: str, name: str, said: str
) -> None:
    with pytest.raises(ImportError, match=f"cannot import name '{name}' from '{path}': .*{said}"):
        exec(f"from {path} import {name}")
    module = importlib.import_module(path)
    assert not hasattr(module, name)
    assert getattr(module, name, None) is None


def test_a_module_of_monarchs_rust_that_is_absent_is_named_as_such() -> None:
    with pytest.raises(ModuleNotFoundError, match="a private path of Monarch") as raised:
        importlib.import_module("monarch._rust_bindings.monarch_hyperactor.alloc")
    assert raised.value.name == "monarch._rust_bindings.monarch_hyperactor.alloc"


@pytest.mark.parametrize("path", [path for path in served() if path in sys.modules])
def test_a_module_of_ours_with_such_a_path_has_its_own_names_first(path: str) -> None:
    module = importlib.import_module(path)
    if module.__spec__ is not None and module.__spec__.origin == monarch_paths.__name__:
        assert inspect.getdoc(module)
        return
    assert inspect.getsource(module).startswith('"""')
    for name, where in served()[path].items():
        public, _, attribute = where.partition(":")
        own = vars(module).get(name)
        assert own is None or own is getattr(importlib.import_module(public), attribute)


class Holder:
    """A class to look for."""


def test_looking_for_where_an_object_comes_from_is_not_disturbed() -> None:
    importlib.import_module("monarch._src.actor.actor_mesh")
    assert pickle.whichmodule(len, "len") == "builtins"  # pyright: ignore[reportAttributeAccessIssue]
    assert pickle.whichmodule(Holder, "Holder") == __name__  # pyright: ignore[reportAttributeAccessIssue]
    assert not hasattr(importlib.import_module("monarch._src.actor.endpoint"), "nonsense")


def test_serving_them_loads_nothing_and_starts_nothing() -> None:
    program = """
import sys
import monarch
before = set(sys.modules)
from monarch._src.actor import actor_mesh
from monarch._rust_bindings.monarch_hyperactor import channel, shape
new = sorted(set(sys.modules) - before)
assert all(n.startswith(("monarch._rust_bindings", "monarch._src.actor")) for n in new), new
import threading
assert threading.active_count() == 1
print(actor_mesh._context.get())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("None\n", "")


def test_endpoints_of_a_class_are_found_as_programs_for_monarch_find_them() -> None:
    from monarch._src.actor.endpoint import EndpointProperty  # type: ignore[attr-defined]

    def endpoints(cls: type) -> list[str]:
        found = ((n, inspect.getattr_static(cls, n)) for n in dir(cls) if not n.startswith("_"))
        return [name for name, value in found if isinstance(value, EndpointProperty)]

    assert endpoints(Volume) == ["get", "held", "put"]
    assert endpoints(Controller) == ["keys", "locate", "note", "teardown"]


# --- actor_mesh._context --------------------------------------------------------------------------

context_variable: Any = importlib.import_module("monarch._src.actor.actor_mesh")._context


def test_a_client_has_no_context_before_its_first_mesh_and_one_after(tmp_path: Any) -> None:
    program = """
from monarch._src.actor import actor_mesh
from monarch.actor import context, this_host

assert actor_mesh._context.get() is None
assert actor_mesh._context.get("none") == "none"
this_host().spawn_procs().initialized.get()
print(actor_mesh._context.get() is context())
"""
    assert run(tmp_path, program) == (0, "True\n", "")


class Threaded(Actor):
    """Has a thread of its own that works in the name of the actor, as engines do."""

    @endpoint
    def in_a_thread(self) -> tuple[bool, bool, str, bool]:
        here = context_variable.get()
        found: list[Any] = []

        def work() -> None:
            found.append(context_variable.get() is None)
            token = context_variable.set(here)
            found.append(context_variable.get() is context())
            found.append(context().actor_instance.name)
            context_variable.reset(token)
            found.append(context_variable.get() is None)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return tuple(found)


def test_a_thread_of_a_proc_has_no_context_until_it_is_given_one(four: ProcMesh) -> None:
    threaded = four.slice(gpus=0).spawn("threaded", Threaded)
    assert threaded.in_a_thread.call_one().get() == (True, True, "threaded", True)


def test_what_is_set_ends_with_its_context(four: ProcMesh) -> None:
    root = context()

    def inside() -> bool:
        context_variable.set(root)
        return context_variable.get() is root

    assert contextvars.copy_context().run(inside)
    assert context_variable.get() is root  # of the client, by itself


# --- a store of tensors, as TorchStore is written -------------------------------------------------


class Volume(Actor):
    """Keeps values that others write into, and read out of, its memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytearray] = {}
        self.rank = current_rank().rank

    @endpoint
    async def put(self, key: str, source: RDMABuffer) -> int:
        value = bytearray(source.size())
        await source.read_into(memoryview(value))
        self.values[key] = value
        return self.rank

    @endpoint
    async def get(self, key: str, destination: RDMABuffer) -> None:
        await destination.write_from(memoryview(self.values[key]))

    @endpoint
    async def held(self) -> list[str]:
        return sorted(self.values)


class Controller(Actor):
    """Knows which volume has what."""

    def __init__(self) -> None:
        self.where: dict[str, int] = {}

    @endpoint
    async def note(self, key: str, volume: int) -> None:
        self.where[key] = volume

    @concurrent_endpoint
    async def locate(self, key: str) -> int:
        return self.where[key]

    @endpoint
    async def keys(self) -> list[str]:
        return sorted(self.where)

    @endpoint
    async def teardown(self) -> None:
        self.where.clear()


class Store:
    """What a program, or an actor of it, puts values with."""

    def __init__(self, controller: Any, volumes: Any) -> None:
        self.controller = controller
        self.volumes = volumes

    async def put(self, key: str, value: bytes) -> None:
        buffer = RDMABuffer(memoryview(bytearray(value)))
        try:
            rank = hash(key) % len(self.volumes)
            volume = self.volumes.slice(gpus=rank)
            await self.controller.note.call_one(key, await volume.put.call_one(key, buffer))
        finally:
            await buffer.drop()

    async def get(self, key: str, size: int) -> bytes:
        value = bytearray(size)
        buffer = RDMABuffer(memoryview(value))
        try:
            rank = await self.controller.locate.call_one(key)
            await self.volumes.slice(gpus=rank).get.call_one(key, buffer)
        finally:
            await buffer.drop()
        return bytes(value)


class Trainer(Actor):
    """Uses the store from a rank."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @endpoint
    async def exchange(self) -> bytes:
        rank = current_rank().rank
        await self.store.put(f"trainer/{rank}", bytes([rank]) * 4096)
        return (await self.store.get(f"trainer/{rank}", 4096))[:2]


async def _use(procs: ProcMesh) -> tuple[list[str], list[bytes], bytes]:
    controller = await get_or_spawn_controller("torchstore", Controller)
    assert await get_or_spawn_controller("torchstore", Controller) is not None
    store = Store(controller, procs.spawn("volumes", Volume))
    await store.put("weights", b"w" * 100_000)
    trainers = procs.spawn("trainers", Trainer, store)
    seen = (await trainers.exchange.call()).values()
    keys = await controller.keys.call_one()
    weights = await store.get("weights", 100_000)
    held = await store.volumes.held.call()
    assert sorted(key for keys in held.values() for key in keys) == keys
    await controller.teardown.call_one()
    return keys, seen, weights


def test_a_store_with_a_controller_volumes_and_buffers_works(four: ProcMesh) -> None:
    assert context_variable.get() is not None  # so it takes the mesh that it is given
    keys, seen, weights = asyncio.run(_use(four))
    assert keys == ["trainer/0", "trainer/1", "trainer/2", "trainer/3", "weights"]
    assert seen == [bytes([rank]) * 2 for rank in range(4)]
    assert weights == b"w" * 100_000
    assert monarch.actor.context() is context_variable.get()
