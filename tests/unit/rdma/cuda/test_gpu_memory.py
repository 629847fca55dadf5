"""What memory of a GPU may be registered, and how its own process uses it."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from monarch._src.rdma.cuda import exports
from monarch._src.rdma.cuda.exports import Export
from monarch._src.rdma.cuda.gpu import gpu
from monarch._src.rdma.cuda.stream_sync import queued_by, settle, wait_for
from monarch._src.rdma.key_table import GPU, KeyView
from monarch._src.rdma.memory import Memory, fix_in_place, view_of
from monarch._src.rdma.regions import Regions
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.transfer import Op
from monarch._src.rdma.transports.base import Piece, Unavailable
from monarch._src.rdma.transports.same_process import LocalLink
from monarch._src.system import shared_memory
from monarch.config import configured
from monarch.rdma import get_rdma_backend
from tests.support.fake_cuda import LAUNCH_FAILED, FakeDriver
from tests.support.fake_gpu_arrays import DeviceArray
from tests.unit.rdma.gpus import FAR, fake, handle_of

pytestmark = pytest.mark.slow

__all__ = ["fake"]
linux = pytest.mark.skipif(
    not shared_memory.PRESENT, reason="memory of other processes needs Linux"
)


# --- kinds of memory ------------------------------------------------------------------------------


class Array:
    """What has the interface, of somebody else's."""

    def __init__(self, of: DeviceArray, **changes: Any) -> None:
        self._of = of
        self._changes = changes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self._of.__cuda_array_interface__, **self._changes}


def test_an_array_of_a_gpu_is_used_where_it_lies(fake: FakeDriver) -> None:
    array = DeviceArray(100, 1)
    memory = memory_of(array[10:30])
    assert (memory.address, memory.size) == (array.address + 10, 20)
    assert memory.device == gpu().devices[1]
    assert not memory.readonly
    assert memory_of(array).root is array
    assert memory_of(DeviceArray(4, readonly=True)).readonly
    of_words = Array(array, shape=(25,), typestr="<f4", strides=(4,))
    assert memory_of(of_words).size == 100
    fix_in_place(memory)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"shape": (10, 10)}, ValueError, "shape (10, 10)"),
        ({"strides": (2,)}, ValueError, "strides (2,)"),
        ({"shape": (0,)}, ValueError, "size 0"),
        ({"typestr": "|O8"}, TypeError, "an array of |O8"),
        ({"mask": object()}, TypeError, "an array with a mask"),
        ({"data": (4096, False)}, TypeError, "cuPointerGetAttribute failed"),
    ],
)
def test_what_has_no_bytes_in_a_row_on_a_gpu_is_refused(
    fake: FakeDriver, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    array = DeviceArray(100)
    with pytest.raises(error) as raised:
        memory_of(Array(array, **changes))
    assert said in str(raised.value)


def test_a_process_without_a_gpu_says_so_of_an_array_on_one() -> None:
    class Stranger:
        __cuda_array_interface__: ClassVar[dict[str, Any]] = {
            "shape": (5,), "typestr": "|u1", "data": (1 << 45, False), "version": 3
        }  # fmt: skip

    with pytest.raises(TypeError, match="this memory cannot be moved"):
        memory_of(Stranger())


def test_who_frees_in_a_finalizer_or_has_no_weak_references_is_kept_until_the_drop(
    fake: FakeDriver,
) -> None:
    class Finalized(Array):
        def __del__(self) -> None:
            pass

    class Slotted:
        __slots__ = ("_of",)

        def __init__(self, of: DeviceArray) -> None:
            self._of = of

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return self._of.__cuda_array_interface__

    array = DeviceArray(100)
    for made in (Finalized(array), Slotted(array)):
        assert memory_of(made).root is None
        assert memory_of(made).keep is made


class OnDevice(torch.Tensor):
    """As a tensor of a GPU is, as far as is looked at, for a torch that has none."""

    there: DeviceArray
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]

    @staticmethod
    def __new__(cls, there: DeviceArray, device: str = "cuda:0", numbers: int = 0) -> OnDevice:
        made = torch.Tensor._make_wrapper_subclass(
            cls, (numbers or len(there),), dtype=torch.uint8, device=torch.device(device)
        )
        made.there = there
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError

    def data_ptr(self) -> int:
        return self.there.address


def test_a_tensor_of_a_gpu_is_used_where_it_lies(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = OnDevice(DeviceArray(100, 1), "cuda:1")
    memory = memory_of(tensor)
    assert (memory.address, memory.size) == (tensor.there.address, 100)
    assert memory.device == gpu().devices[1]
    assert memory.root is tensor.untyped_storage()
    asked: list[Any] = []

    def current_stream(device: Any) -> Any:
        asked.append(device)
        return SimpleNamespace(cuda_stream=0)

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    settle(memory)
    assert asked == [torch.device("cuda", 1)]
    assert fake.calls["cuStreamSynchronize"] == 1


def test_tensors_of_other_accelerators_are_refused_with_what_would_do(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = DeviceArray(100)
    for device in ("xpu:0", "mps"):
        with pytest.raises(TypeError, match=r"a tensor on (xpu:0|mps); .*`\.cpu\(\)`"):
            memory_of(OnDevice(array, device))
    monkeypatch.setattr(torch.version, "hip", "6.2")
    with pytest.raises(TypeError, match="of ROCm, which has another driver"):
        memory_of(OnDevice(array))


LOADS_NOTHING = """
import sys
import numpy, torch
from monarch._src.rdma.registrable import memory_of
from monarch._src.rdma.regions import Regions
regions = Regions("node", "address")
for value in (numpy.zeros(10), torch.zeros(10), bytearray(10)):
    regions.register(memory_of(value))
regions.close()
from monarch._src.rdma.cuda.gpu import gpu_if_used
assert gpu_if_used() is None
print(any("libcuda.so" in line for line in open("/proc/self/maps")))
"""


@linux
def test_who_has_no_memory_of_a_gpu_loads_no_driver(run_python: Callable[..., str]) -> None:
    assert run_python(LOADS_NOTHING).strip() == "False"


# --- queued work ----------------------------------------------------------------------------------


def test_what_was_queued_on_the_stream_that_an_array_tells_is_waited_for(
    fake: FakeDriver,
) -> None:
    array = DeviceArray(5)
    array.put(b"older")
    stream = gpu().taken(0)
    array.stream = stream.number
    memory = memory_of(array)
    for use in (lambda: settle(memory), lambda: wait_for(queued_by([op(memory), op(memory)]))):
        data = ctypes.create_string_buffer(b"newer", 5)
        stream.copy(array.address, ctypes.addressof(data), 5)
        assert array.tobytes() == b"older"
        use()
        assert array.tobytes() == b"newer"
        array.put(b"older")
    gpu().put_back(stream)


def test_a_stream_of_the_calling_thread_is_waited_for_there(fake: FakeDriver) -> None:
    array = DeviceArray(5, stream=2)
    assert queued_by([op(memory_of(array))]) == set()
    assert fake.calls["cuStreamSynchronize"] == 1


def test_arrays_that_tell_no_stream_are_waited_for_by_nobody(fake: FakeDriver) -> None:
    assert queued_by([op(memory_of(DeviceArray(5))), op(memory_of(bytearray(5)))]) == set()


def op(memory: Memory) -> Op:
    return Op("read", handle_of(0, bytes(16), 5), memory, 5)


# --- the owner's table ----------------------------------------------------------------------------


@linux
def test_an_allocation_is_exported_once_and_until_its_last_region_has_ended(
    fake: FakeDriver,
) -> None:
    regions = Regions("node", "address")
    whole = DeviceArray(4 << 20)
    parts = [whole[n << 10 : (n + 1) << 10] for n in range(500)]
    made = [regions.register(memory_of(part)) for part in parts]
    assert fake.calls["cuIpcGetMemHandle"] == 2  # the probe's allocation, and this one
    assert regions.exported == 1
    other = DeviceArray(100)
    slot, key, _ = regions.register(memory_of(other))
    assert regions.exported == 2
    assert regions.drop(slot, key)
    assert regions.exported == 1
    for slot, key, _ in made[1:]:
        regions.drop(slot, key)
    assert regions.exported == 1
    del parts[:]
    gc.collect()
    assert regions.exported == 0
    regions.close()


@linux
def test_a_slot_says_where_in_which_allocation_a_region_lies(fake: FakeDriver) -> None:
    regions = Regions("node", "address")
    whole = DeviceArray(4096)
    part = whole[100:300]
    slot, key, shared = regions.register(memory_of(part))
    assert not shared
    view = KeyView(view_of(*regions._maps[0]))  # pyright: ignore[reportPrivateUsage]
    found = view.find(slot, key, 200)
    assert found is not None
    entry = found[0]
    assert entry.offset == 100
    fd = shared_memory.open_of(regions.owner.pid, view.gpus, writable=False)
    where = shared_memory.map_shared(fd, exports.TABLE_BYTES, writable=False)
    table = view_of(where, exports.TABLE_BYTES)
    assert exports.belongs_to(table, regions.owner.incarnation)
    assert not exports.belongs_to(table, bytes(16))
    export = exports.get(table, GPU - entry.segment, entry.file)
    assert export is not None
    assert (export.uuid, export.size, export.reason) == (gpu().devices[0].uuid, 4096, "")
    assert export.handle == gpu().export(0, whole.address)
    assert exports.get(table, GPU - entry.segment, entry.file + 1) is None
    assert exports.get(table, exports.CAPACITY, 0) is None
    shared_memory.unmap(where, exports.TABLE_BYTES)
    os.close(fd)
    regions.close()


def test_a_table_keeps_what_it_is_told() -> None:
    table = memoryview(bytearray(exports.TABLE_BYTES))
    exports.begin(table, b"i" * 16)
    assert exports.get(table, 3, 0) is None
    export = Export(b"u" * 16, b"h" * 64, 1 << 40)
    exports.put(table, 3, 7, export)
    assert exports.get(table, 3, 7) == export
    closed = Export(b"u" * 16, bytes(64), 0, "why " * 100)
    exports.put(table, 3, 8, closed)
    found = exports.get(table, 3, 8)
    assert found is not None
    assert closed.reason.startswith(found.reason)
    assert len(found.reason) == 160


# --- within this process --------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("here", ["host", "gpu 0", "gpu 1"])
def test_memory_of_a_gpu_is_read_and_written_in_its_own_process(
    fake: FakeDriver, here: str
) -> None:
    regions = Regions("node", "address")
    array = DeviceArray(1000)
    array.put(bytes(range(250)) * 4)
    slot, key, _ = regions.register(memory_of(array))
    handle = handle_of(slot, key, 1000, regions.owner)
    local: Any = bytearray(1000) if here == "host" else DeviceArray(1000, int(here[-1]))
    memory = memory_of(local)
    link = LocalLink(regions)
    link.read_into([Piece(handle, 0, memory.address, 1000, memory)], FAR)
    assert (bytes(local) if here == "host" else local.tobytes()) == array.tobytes()
    link.write_from([Piece(handle, 10, memory.address, 50, memory)], FAR)
    assert array.tobytes()[:60] == bytes(range(10)) + bytes(range(50))
    fake.fail("cuMemcpyAsync", LAUNCH_FAILED)
    with pytest.raises(Unavailable, match="CUDA_ERROR_LAUNCH_FAILED"):
        link.read_into([Piece(handle, 0, memory.address, 1000, memory)], FAR)
    regions.close()


@pytest.mark.usefixtures("fake")
def test_the_backend_of_memory_of_gpus_between_hosts_is_tcp_or_none() -> None:
    assert get_rdma_backend("cuda") == "tcp"
    with configured(rdma_allow_tcp_fallback=False):
        assert get_rdma_backend("cuda") == "none"
