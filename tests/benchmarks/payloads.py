"""What pickling arguments costs: small ones in time, large ones in time and copies.

    python -m tests.benchmarks.payloads

Best of many rounds. Copies are what the sender's memory grew by at its peak, over the size.
"""

from __future__ import annotations

import io
import pickle
import re
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from monarch._src.actor.serialize import pack_value
from monarch._src.pickling import pickler
from monarch._src.pickling.pickler import loads
from monarch.actor import Actor, endpoint, shutdown_context, this_host
from monarch.buffers import Buffer

MEBI = 1 << 20
SIZE = 64 * MEBI
ROUNDS = 30


class Taker(Actor):
    """Takes anything."""

    @endpoint
    def take(self, value: Any) -> None: ...


def microseconds(work: Callable[[], object], number: int) -> float:
    return min(timeit.repeat(work, number=number, repeat=ROUNDS)) / number * 1e6


def by_cloudpickle(value: object) -> bytes:
    file: Any = io.BytesIO()
    pickler._Pickler(file, []).dump(value)
    return file.getvalue()


SMALL: dict[str, Any] = {
    "nothing": ((), {}),
    "one int": ((1,), {}),
    "int, str, float, keyword": ((1, "text", 2.5), {"key": 1}),
    "dict of 10": (({str(n): n for n in range(10)},), {}),
    "list of 60": ((list(range(60)),), {}),
    "list of 1,000": ((list(range(1000)),), {}),
    "array of 3": ((numpy.zeros(3),), {}),
    "function": ((microseconds,), {}),
}


def small(value: Any) -> list[float]:
    """By pickle and by cloudpickle alone; what choosing takes, all of sending, and reading."""
    payload = pack_value(value, 2)
    return [
        microseconds(lambda: pickle.dumps(value, 5), 300),
        microseconds(lambda: by_cloudpickle(value), 100),
        microseconds(lambda: pickler._which(value), 300),
        microseconds(lambda: pack_value(value, 2), 200),
        microseconds(lambda: loads(payload), 200),
    ]


def frozen(data: bytes) -> Any:
    buffer = Buffer()
    buffer.write(data)
    return buffer.freeze()


def peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def large_values() -> dict[str, Any]:
    data = numpy.random.default_rng(1).bytes(SIZE)
    values: dict[str, Any] = {
        "bytes": data,
        "FrozenBuffer": frozen(data),
        "bytearray": bytearray(data),
        "bytes in a list": [data],
        "array": numpy.frombuffer(data, numpy.uint8).copy(),
    }
    try:
        import torch
    except ImportError:
        return values
    return {**values, "tensor": torch.frombuffer(bytearray(data), dtype=torch.float32).clone()}


def large(taker: Any, value: Any) -> tuple[float, float, float, bool]:
    """Milliseconds of a call of one rank, and of pickling alone; copies; whether out of band."""
    call = microseconds(lambda: taker.take.call_one(value).get(), 1) / 1e3
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    payload = pack_value(((value,), {}), 2)
    copies, beside = (peak() - before) / SIZE, bool(payload.buffers)
    del payload
    alone = microseconds(lambda: pack_value(((value,), {}), 2), 1) / 1e3
    return call, alone, copies, beside


def main() -> None:
    """Measure and print."""
    heads = ("pickle", "cloudpickle", "choosing", "sending", "reading")
    print(f"{'microseconds':26}" + "".join(f"{head:>13}" for head in heads))
    for name, value in SMALL.items():
        print(f"{name:26}" + "".join(f"{figure:13.2f}" for figure in small(value)))
    taker = this_host().spawn_procs().spawn("taker", Taker)
    print(f"\n{'64 MiB':26}{'call, ms':>13}{'pickling, ms':>13}{'copies':>13}{'out of band':>13}")
    for name, value in large_values().items():
        call, alone, copies, beside = large(taker, value)
        print(f"{name:26}{call:13.1f}{alone:13.2f}{copies:13.1f}{beside!s:>13}")
    shutdown_context()


if __name__ == "__main__":
    main()
