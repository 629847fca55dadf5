"""The binding of the driver: results become errors with its words; what is not there is told."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from monarch._src.rdma.cuda import driver as cuda
from monarch._src.rdma.cuda import gpu as gpus
from monarch._src.rdma.cuda.driver import CudaError, Driver, NoGpuError, functions_of
from tests.support.fake_cuda import OUT_OF_MEMORY, FakeDriver
from tests.support.fake_gpu_arrays import DeviceArray
from tests.unit.rdma.gpus import fake

__all__ = ["fake"]


def test_a_result_is_an_error_with_the_drivers_name_and_words(fake: FakeDriver) -> None:
    fake.fail("cuMemAlloc_v2", OUT_OF_MEMORY)
    with pytest.raises(CudaError) as raised:
        gpus.gpu().allocate(0, 100)
    assert (raised.value.function, raised.value.number) == ("cuMemAlloc_v2", 2)
    assert raised.value.name == "CUDA_ERROR_OUT_OF_MEMORY"
    assert str(raised.value) == "cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY (2), out of memory"


def test_a_result_that_the_driver_has_no_words_for_has_its_number(fake: FakeDriver) -> None:
    fake.fail("cuMemAlloc_v2", 4711)
    with pytest.raises(CudaError, match=r"cuMemAlloc_v2 failed: an error that .* \(4711\)"):
        gpus.gpu().allocate(0, 100)


def test_a_driver_that_is_too_old_is_told_by_what_it_lacks() -> None:
    with pytest.raises(NoGpuError, match="has no cuGetErrorName: it is too old"):
        functions_of(SimpleNamespace(cuInit=ctypes.CDLL(None).getpid))


def test_every_function_has_the_types_of_its_arguments() -> None:
    """What a library gives takes anything, and cuts it to 32 bits."""
    library = SimpleNamespace(
        **{name: ctypes.CDLL(None)["getpid"] for name in cuda.PROTOTYPES},
        cuDeviceGetUuid_v2=ctypes.CDLL(None)["getppid"],
    )
    found = functions_of(library)
    for name, types in cuda.PROTOTYPES.items():
        assert tuple(getattr(found, name).argtypes) == types
    assert found.cuDeviceGetUuid is library.cuDeviceGetUuid_v2


def test_a_process_without_a_driver_or_a_device_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda, "LIBRARY", "libnone.so.1")
    with pytest.raises(NoGpuError, match=r"no CUDA driver here: libnone\.so\.1: cannot open"):
        cuda.load()
    with pytest.raises(NoGpuError, match="CUDA_ERROR_NO_DEVICE"):
        gpus.Gpu(Driver(FakeDriver(visible=()).functions))


def test_no_context_stays_current_and_none_is_taken_twice(fake: FakeDriver) -> None:
    array = DeviceArray(100)
    found = gpus.gpu()
    with pytest.raises(CudaError, match="cuCtxPopCurrent_v2 failed: CUDA_ERROR_INVALID_CONTEXT"):
        found.driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    fake.fail("cuMemcpyAsync", OUT_OF_MEMORY)
    with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
        array.tobytes()
    with pytest.raises(CudaError, match="INVALID_CONTEXT"):
        found.driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    assert fake.held()["contexts"] == 2  # ours, and that of the array


def test_what_is_given_back_is_made_anew_when_it_is_used_again(fake: FakeDriver) -> None:
    array = DeviceArray(5)
    array.put(b"hello")
    gpus.gpu().give_back()
    assert fake.held() == {
        "allocations": 1, "opened": 0, "pinned": 0, "streams": 0, "contexts": 1
    }  # fmt: skip
    assert array.tobytes() == b"hello"


def test_a_stream_whose_copy_failed_is_waited_for_before_that_is_told(fake: FakeDriver) -> None:
    """What had begun before may still write to memory of who is told."""
    found, room = gpus.gpu(), DeviceArray(4)
    source = ctypes.create_string_buffer(b"abcd", 4)

    def copy_twice() -> None:
        with found.stream(0) as stream:
            stream.copy(room.address, ctypes.addressof(source), 4)
            fake.fail("cuMemcpyAsync", OUT_OF_MEMORY)
            stream.copy(room.address, ctypes.addressof(source), 4)

    with pytest.raises(CudaError):
        copy_twice()
    ctypes.memset(source, 0, 4)
    assert room.tobytes() == b"abcd"
