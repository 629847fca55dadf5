"""What counting adds to a call, by part: each with and without, on the code that calls run through.

    python -m tests.benchmarks.counting

The best of many rounds, both in turn; in nanoseconds.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any

from monarch._src.actor.call import call as calling
from monarch._src.actor.call.call import Endpoint
from monarch._src.actor.endpoint import EndpointMethod, actor_class
from monarch._src.actor.run.endpoint_table import EndpointTable
from monarch._src.actor.run.running_calls import RunningCalls
from monarch._src.actor.serialize import pack_value
from monarch._src.actor.state.calls import CallTable, PendingCall
from monarch._src.actor.state.endpoint_metrics import MetricsTable
from monarch._src.failures.report import RankFailure
from monarch._src.shape import Extent, Region
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import OK, Call
from monarch.actor import Actor, endpoint

NUMBER, ROUNDS = 20_000, 15
REGION = Region.of_extent(Extent((), ()))
PAYLOAD = pack_value(((1,), {}))
Pair = tuple[Callable[[], object], Callable[[], object]]


class Silent(PendingCall):
    """A call that tells nobody."""

    def on_answer(self, position: int, payload: Payload) -> None: ...
    def on_error(self, position: int, status: int, payload: Payload) -> None: ...
    def on_lost(self, position: int, failure: RankFailure) -> None: ...


class Echo(Actor):
    """Two endpoints that differ in this alone."""

    @endpoint
    def counted(self) -> None: ...
    @endpoint(instrument=False)
    def plain(self) -> None: ...


def sending() -> Pair:
    """The caller begins: the clock, and the figures of its arguments."""
    calling.send_call = lambda *_, **__: None  # type: ignore[assignment]
    ref = SimpleNamespace(uid=1, name="workers")
    target: Any = SimpleNamespace(procs=ref, name="echo", class_name="Echo", region=REGION)
    run: Any = SimpleNamespace(metrics=MetricsTable())
    pending = Silent(1, None, REGION)

    def one(method: EndpointMethod[Any, Any], clock: Callable[[], int]) -> Callable[[], object]:
        send = Endpoint(run, target, method)._send
        return lambda: send("call_one", clock(), REGION, PAYLOAD, pending)

    plain = Endpoint(run, target, Echo.plain)._send
    return one(Echo.counted, monotonic_ns), lambda: plain("call_one", 0, REGION, PAYLOAD, pending)


def answering() -> Pair:
    """The caller's end: the clock, and the figures of the answer."""
    table, counts = CallTable(monotonic_ns), MetricsTable().counts(("x",), 0)  # type: ignore[arg-type]

    def one(counted: bool) -> Callable[[], object]:
        call = Silent(1, None, REGION)
        call.counts = counts if counted else None

        def answer() -> None:
            call.owed = 1
            table.answer(table.open(call), 0, OK, PAYLOAD)

        return answer

    return one(True), one(False)


def running() -> Pair:
    """The callee: when it came, how long it waited and ran, the figures of both payloads."""
    run: Any = SimpleNamespace(
        metrics=MetricsTable(),
        routes=SimpleNamespace(reply=lambda *_: None),
        name="here",
        node=None,
    )
    spec: Any = SimpleNamespace(mesh=1, mesh_name="workers", class_name="Echo", name="echo")
    worker: Any = SimpleNamespace(runtime=run, dead=None)
    endpoints = EndpointTable(run, spec, actor_class(Echo))
    in_hand = RunningCalls(worker)

    def one(name: str) -> Callable[[], object]:
        call = Call(1, 1, name, 0, [], [])

        def handle() -> None:
            came = monotonic_ns() if name == "counted" else 0
            in_hand.accept("client", call, PAYLOAD, came)
            bound = endpoints.look_up(call, PAYLOAD, 5000 - came)
            in_hand.complete("client", call, None, None, bound, 4321)

        return handle

    return one("counted"), one("plain")


def best(work: Callable[[], object]) -> float:
    """Nanoseconds of one of many."""
    return timeit.timeit(work, number=NUMBER) / NUMBER * 1e9


def main() -> None:
    """Measure and print."""
    total = 0.0
    for make in (sending, answering, running):
        counted, plain = make()
        pairs = [(best(counted), best(plain)) for _ in range(ROUNDS)]
        added = min(with_ for with_, _ in pairs) - min(without for _, without in pairs)
        total += added
        print(f"{(make.__doc__ or '').partition(':')[0]:24} {added:6.0f} ns")
    print(f"{'together':24} {total:6.0f} ns")


if __name__ == "__main__":
    main()
