"""The fake driver is as strict as a driver: what would go wrong on a GPU goes wrong on it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import pytest

from monarch._src.rdma.cuda.driver import CudaError, Driver, IpcHandle
from monarch._src.rdma.cuda.gpu import Gpu
from tests.support.fake_cuda import INVALID_CONTEXT, NOT_INITIALIZED, FakeDriver


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    made = FakeDriver()
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[FakeDriver]:
    """That of another process."""
    made = FakeDriver()
    yield made
    made.close()


@pytest.fixture
def found(driver: FakeDriver) -> Gpu:
    return Gpu(Driver(driver.functions))


def bytes_at(found: Gpu, address: int, size: int) -> bytes:
    room = ctypes.create_string_buffer(size)
    found.copy(ctypes.addressof(room), address, size, 0)
    return room.raw


def put(found: Gpu, address: int, data: bytes) -> None:
    source = ctypes.create_string_buffer(data, len(data))
    found.copy(address, ctypes.addressof(source), len(data), 0)


def test_nothing_works_before_the_driver_is_begun_or_without_a_context(
    driver: FakeDriver,
) -> None:
    functions = driver.functions
    assert functions.cuMemAlloc_v2(byref(c_uint64()), 100) == NOT_INITIALIZED
    assert functions.cuInit(0) == 0
    assert functions.cuMemAlloc_v2(byref(c_uint64()), 100) == INVALID_CONTEXT


def test_device_memory_has_no_address_that_a_processor_could_use() -> None:
    code = """
import ctypes
from tests.support.fake_cuda import install
from tests.support.fake_gpu_arrays import DeviceArray
install()
ctypes.string_at(DeviceArray(100).address, 1)
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert ended.returncode == -11


def test_a_copy_is_not_done_before_its_stream_was_waited_for(found: Gpu) -> None:
    there = found.allocate(0, 8)
    put(found, there, b"old data")
    source = ctypes.create_string_buffer(b"new data", 8)
    stream = found.taken(0)
    stream.copy(there, ctypes.addressof(source), 8)
    assert bytes_at(found, there, 8) == b"old data"
    stream.wait()
    assert bytes_at(found, there, 8) == b"new data"


def test_memory_that_is_freed_under_a_copy_ends_the_context(found: Gpu) -> None:
    there, room = found.allocate(0, 8), ctypes.create_string_buffer(8)
    stream = found.taken(0)
    stream.copy(ctypes.addressof(room), there, 8)
    found.free(0, there)
    with pytest.raises(CudaError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        stream.wait()
    with pytest.raises(CudaError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        found.allocate(0, 8)
    found.allocate(1, 8)


def test_memory_that_is_not_there_cannot_be_copied_or_freed(found: Gpu) -> None:
    there, room = found.allocate(0, 100), ctypes.create_string_buffer(200)
    with pytest.raises(CudaError, match="INVALID_VALUE"):  # past its end
        found.copy(ctypes.addressof(room), there, 101, 0)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        found.free(0, there + 1)
    found.free(0, there)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        found.copy(ctypes.addressof(room), there, 1, 0)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        found.free(0, there)
    pinned = found.allocate_pinned(0, 4096)
    found.free_pinned(0, pinned)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        found.copy(pinned, ctypes.addressof(room), 100, 0)


def test_an_address_is_in_one_allocation_and_used_again(found: Gpu) -> None:
    one = found.allocate(0, 3 << 20)
    assert found.allocation(0, one + 12345) == (one, 3 << 20)
    with pytest.raises(CudaError, match="NOT_FOUND"):
        found.allocation(0, one + (3 << 20))
    put(found, one, b"something")
    found.free(0, one)
    assert found.allocate(0, 3 << 20) == one
    assert bytes_at(found, one, 9) == bytes(9)


def test_an_allocation_is_opened_by_another_process_and_by_its_own_not(
    found: Gpu, other: FakeDriver
) -> None:
    there = found.allocate(0, 100)
    put(found, there, b"from there")
    told = found.export(0, there)
    with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_CONTEXT"):
        found.open(0, told)
    with pytest.raises(CudaError, match="INVALID_VALUE"):  # not its beginning
        found.export(0, there + 8)
    reader = Gpu(Driver(other.functions))
    one, again = reader.open(0, told), reader.open(0, told)
    assert one == again
    assert bytes_at(reader, one, 10) == b"from there"
    put(reader, one, b"from here!")
    assert bytes_at(found, there, 10) == b"from here!"
    reader.close_opened(0, one)
    assert other.held()["opened"] == 1
    reader.close_opened(0, one)
    assert other.held()["opened"] == 0
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        reader.close_opened(0, one)
    with pytest.raises(CudaError, match="INVALID_VALUE"):  # opened memory is not exported again
        reader.export(0, reader.open(0, told))


def test_what_is_freed_or_expandable_is_not_opened(
    found: Gpu, driver: FakeDriver, other: FakeDriver
) -> None:
    there = found.allocate(0, 100)
    told = found.export(0, there)
    found.free(0, there)
    with pytest.raises(CudaError, match="MAP_FAILED"):
        Gpu(Driver(other.functions)).open(0, told)
    driver.expandable = True
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        found.export(0, found.allocate(0, 100))


def test_a_context_goes_with_its_last_user_and_all_that_is_in_it(
    found: Gpu, driver: FakeDriver
) -> None:
    found.allocate(0, 100)
    assert driver.held()["allocations"] == 1
    found.give_back()
    assert driver.held() == {
        "allocations": 0, "opened": 0, "pinned": 0, "streams": 0, "contexts": 0
    }  # fmt: skip


def test_a_fault_comes_at_its_call_and_no_other(found: Gpu, driver: FakeDriver) -> None:
    driver.fail("cuMemAlloc_v2", 2, at=2, times=2)
    results: list[str] = []
    for _ in range(4):
        try:
            found.allocate(0, 100)
            results.append("done")
        except CudaError as error:
            results.append(error.name)
    assert results == ["done", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_OUT_OF_MEMORY", "done"]


def test_calls_go_through_c_with_the_types_of_the_driver(driver: FakeDriver) -> None:
    functions = driver.functions
    with pytest.raises(ctypes.ArgumentError):
        functions.cuMemGetAddressRange_v2(byref(c_uint64()), byref(c_int()), 1)
    with pytest.raises(ctypes.ArgumentError):
        functions.cuIpcOpenMemHandle_v2(byref(c_uint64()), b"x" * 64, 1)
    functions.cuInit(0)
    assert functions.cuIpcOpenMemHandle_v2(byref(c_uint64()), IpcHandle(), 1) == INVALID_CONTEXT
    found = c_void_p()
    assert functions.cuDevicePrimaryCtxRetain(byref(found), 0) == 0
    assert functions.cuCtxPushCurrent_v2(found) == 0
    assert functions.cuMemGetAddressRange_v2(byref(c_uint64()), byref(c_size_t()), 1 << 61) == 500
