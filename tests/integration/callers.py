"""Actors that call others, or own them."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from monarch.actor import Actor, context, endpoint, this_host, this_proc
from tests.integration.failing_actors import Failing, Faulty
from tests.integration.gates import Gate
from tests.integration.sample_actors import Arrays, Echo, Recorder, Teller


class Ring(Actor):
    """Actors that call each other."""

    @endpoint
    def meet(self, ring: Ring) -> int:
        self.ring = ring
        self.me = context().actor_instance.rank.rank
        return len(ring)

    @endpoint
    def who(self) -> int:
        return context().actor_instance.rank.rank

    @endpoint
    def ask(self, other: Echo, value: Any) -> Any:
        return other.same.call_one(value).get()

    @endpoint
    def ask_all(self, others: Echo, value: Any) -> list[Any]:
        return others.same.call(value).get().values()

    @endpoint
    def inject(self, what: str, mesh: Any) -> str:
        from monarch.testing import faults

        try:
            if what == "kill":
                faults.kill(mesh)
            else:
                with faults.partition(mesh):
                    pass
        except RuntimeError as error:
            return str(error)
        return "did it"

    @endpoint
    def hold_by(self, faulty: Faulty, gate: Gate) -> int:
        return faulty.hold.call_one(gate).get()

    @endpoint
    def who_do_you_reach(self, others: Teller) -> list[tuple[int, int]]:
        found = others.places.call().get()
        return [(v["message_rank_number"], v["actor_rank_number"]) for v in found.values()]

    @endpoint
    def broadcast_many(self, to: Recorder, count: int) -> None:
        for number in range(count):
            to.note.broadcast((context().actor_instance.rank.rank, number))
        to.count.call().get()  # answered when all that came before it has been handled

    @endpoint
    def stream_of(self, others: Echo) -> list[int]:
        return sorted(answer.get() for answer in others.rank.stream())

    @endpoint
    def neighbour_on_this_proc(self) -> tuple[int, int]:
        neighbour = this_proc().spawn("neighbour", Teller)
        pid = neighbour.pid.call_one().get()
        neighbour.stop().get()
        return os.getpid(), pid

    @endpoint
    def try_to_stop(self, mesh: Any) -> str:
        try:
            mesh.stop()
        except ValueError as error:
            return str(error)
        return "stopped it"

    @endpoint
    def arrays_of_neighbour(self, arrays: Arrays, count: int) -> tuple[float, float, bool]:
        import numpy

        mine = numpy.zeros(count)
        total, writable = arrays.add_one_in_place.call_one(mine).get()
        return float(mine.sum()), total, writable

    @endpoint
    def what_went_wrong(self, failing: Failing) -> BaseException | None:
        return failing.raise_value_error.call_one("inner").exception()

    @endpoint
    def let_it_escape(self, failing: Failing) -> None:
        failing.raise_value_error.call_one("inner").get()


class AsyncRing(Actor):
    """An async actor that awaits others."""

    @endpoint
    async def ask_all(self, others: Echo, values: list[Any]) -> list[Any]:
        answers = [others.same.call(value) for value in values]
        return [(await answer).values() for answer in answers]

    @endpoint
    async def gathered(self, others: Echo, count: int) -> list[int]:
        found = await asyncio.gather(*(others.same.call_one(i) for i in range(count)))
        return list(found)


class Spawner(Actor):
    """Owns a mesh of its own."""

    @endpoint
    def spawn(self, count: int) -> Any:
        self.procs = this_host().spawn_procs({"at": count}, name="children")
        self.children = self.procs.spawn("children", Teller)
        return self.children.pid.call().get().values()

    @endpoint
    def children_mesh(self) -> Any:
        return self.children

    @endpoint
    def stop_children(self) -> None:
        self.procs.stop().get()
