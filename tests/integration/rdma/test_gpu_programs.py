"""Memory of a GPU as programs use it: what they have queued is waited for, and nothing is left."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from monarch._src.system import shared_memory

pytestmark = pytest.mark.skipif(not shared_memory.PRESENT, reason="cuda_ipc and cma need Linux")

PROGRAM = """
import ctypes, gc, json
from tests.support.fake_cuda import install
driver = install()
from monarch._src.rdma.cuda.gpu import gpu
from tests.support.fake_gpu_arrays import DeviceArray
from monarch.actor import Actor, endpoint, shutdown_context, this_host
from monarch.rdma import RDMAAction, RDMABuffer, RDMAUnavailableError

seen = []
kept = []
stream = gpu().taken(0)

def queue(array, data):
    kept.append(ctypes.create_string_buffer(data, len(data)))
    stream.copy(array.address, ctypes.addressof(kept[-1]), len(data))

class Holder(Actor):
    def __init__(self):
        install()
        self.array = DeviceArray(5)
        self.array.put(b"there")

    @endpoint
    def handle(self) -> RDMABuffer:
        return RDMABuffer(self.array)

    @endpoint
    def data(self) -> bytes:
        return self.array.tobytes()

ours = DeviceArray(5, stream=stream.number)
queue(ours, b"first")
buffer = RDMABuffer(ours)            # whoever gets it may read at once
seen.append(ours.tobytes().decode())

holder = this_host().spawn_procs({"gpus": 1}).spawn("holder", Holder)
theirs = holder.handle.call_one().get()
action = RDMAAction().write_remote(theirs, ours)
for data in (b"again", b"twice"):
    queue(ours, data)
    action.submit().get()            # what is queued by now is what is sent
    seen.append(holder.data.call_one().get().decode())

queue(ours, b"later")                # a kernel that reads or writes the destination comes first
theirs.read_into(ours).get()
seen.append(ours.tobytes().decode())
seen.append(theirs.backend)
seen.append(buffer.backend)

room = bytearray(5)
buffer.read_into(room).get()         # of this very process
seen.append(room.decode())

queue(ours, b"never")
driver.fail("cuStreamSynchronize", 719)
try:
    theirs.write_from(ours).get()
except RDMAUnavailableError as error:
    seen.append(str(error))
driver.fail("cuStreamSynchronize", 719)
try:
    RDMABuffer(ours)
except RDMAUnavailableError as error:
    seen.append(str(error))
gpu().synchronize(0, stream.number)
gpu().put_back(stream)
shutdown_context().get()
before = driver.held()
del ours, action, buffer
gc.collect()
gpu().give_back()                    # to free it took the context once more
print(json.dumps([seen, before, driver.held()]))
"""


OCCUPIED = """
import ctypes, gc, json
from tests.support.fake_cuda import install
driver = install()
from monarch._src.rdma.cuda.gpu import gpu
from tests.support.fake_gpu_arrays import DeviceArray
from monarch.actor import shutdown_context, this_host
from monarch.rdma import RDMATimeoutError
from tests.integration.rdma.gpu_parties import GpuHolder

holder = this_host().spawn_procs({"gpus": 1}).spawn("holder", GpuHolder)
theirs = holder.make.call_one(5, False).get()
before = holder.data.call_one(0).get()
stream = gpu().taken(0)
seen = []
for number in (stream.number, 2):     # one of the program's, and that of this very thread
    ours = DeviceArray(5, stream=number)
    ours.put(b"first")
    driver.occupy(number)
    try:
        theirs.write_from(ours, timeout=0.1).get()
    except RDMATimeoutError as error:
        seen.append(str(error))
    seen.append(holder.data.call_one(0).get() == before)
driver.release(2)
late = theirs.write_from(DeviceArray(5, stream=stream.number))
seen.append(late.done)
driver.release(stream.number)
late.get()
seen.append(holder.data.call_one(0).get().hex())
gpu().put_back(stream)
shutdown_context().get()
print(json.dumps(seen))
"""


def test_a_time_out_ends_the_wait_for_what_was_queued_and_nothing_is_moved(
    run_python: Callable[..., str],
) -> None:
    first, kept, second, kept_again, done, moved = json.loads(run_python(OCCUPIED).splitlines()[-1])
    for said in (first, second):
        assert said.startswith("a write of 5 bytes to the RDMABuffer of 5 bytes of holder")
        assert "not done within 0.1 s: work that the program has queued on a GPU of this" in said
    assert (kept, kept_again, done, moved) == (True, True, False, bytes(5).hex())


def test_what_a_program_has_queued_is_waited_for_and_a_session_leaves_nothing(
    run_python: Callable[..., str],
) -> None:
    seen, before, after = json.loads(run_python(PROGRAM).splitlines()[-1])
    *told, of_transfer, of_buffer = seen
    assert told == ["first", "again", "twice", "twice", "cuda_ipc", "local", "twice"]
    assert "has failed: cuStreamSynchronize failed: CUDA_ERROR_LAUNCH_FAILED" in of_transfer
    assert of_transfer.startswith("a write of 5 bytes to the RDMABuffer of 5 bytes of holder")
    assert "has failed: cuStreamSynchronize failed: CUDA_ERROR_LAUNCH_FAILED" in of_buffer
    nothing = dict.fromkeys(after, 0)
    assert before == {**nothing, "allocations": 1, "contexts": 1}  # the program's own
    assert after == nothing
