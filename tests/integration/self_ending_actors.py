"""Actors that end themselves as they are told, and write down what they do meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from monarch.actor import Actor, Port, SupervisionError, concurrent_endpoint, context, endpoint
from monarch.config import configure
from tests.integration.gates import Gate
from tests.integration.sample_actors import append


def end_self(how: str, reason: str | None) -> None:
    """What each actor here calls: one of the three, on its own instance."""
    getattr(context().actor_instance, how)(reason)


class SelfEnding(Actor):
    """A sync actor that ends itself."""

    def __init__(self, path: str, how: str = "", reason: str = "") -> None:
        self.path = path
        if how:
            end_self(how, reason)
            append(path, "the constructor went on")

    @endpoint
    def ping(self) -> str:
        return "pong"

    @endpoint
    def quit(self, how: str, reason: str | None = None) -> str:
        end_self(how, reason)
        append(self.path, "went on")
        return "a value"

    @endpoint
    def quit_at(self, gate: Gate, how: str, reason: str) -> str:
        end_self(how, reason)
        gate.pass_through()
        append(self.path, "went on")
        return "a value"

    @endpoint
    def quit_behind(self, gate: Gate, how: str, reason: str) -> str:
        gate.pass_through()
        end_self(how, reason)
        return "a value"

    @endpoint
    def quit_twice(self) -> None:
        end_self("abort", "the first")
        end_self("kill", "the second")

    @endpoint
    def quit_and_raise(self) -> None:
        end_self("abort", "the first")
        raise SystemExit(3)

    @endpoint
    def quit_on_a_thread(self, how: str, reason: str, hold: Gate | None = None) -> str:
        me = context().actor_instance
        thread = threading.Thread(target=lambda: getattr(me, how)(reason))
        thread.start()
        if hold is None:
            thread.join()
        else:
            hold.pass_through()
        return "a value"

    @endpoint
    def quit_from_a_thread_without_an_actor(self, how: str) -> str:
        said: list[str] = []

        def run() -> None:
            try:
                end_self(how, "lost")
            except RuntimeError as error:
                said.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return said[0]

    @endpoint(explicit_response_port=True)
    def quit_before_it_answers(self, port: Port[str]) -> None:
        end_self("abort", "no answer today")
        port.send("too late")

    @endpoint
    def lower_the_time_for_clean_up(self) -> None:
        configure(cleanup_timeout="50ms")

    def __cleanup__(self, exception: BaseException | None) -> None:
        append(self.path, f"cleaned up after {type(exception).__name__}: {exception}")


class Bare(Actor):
    """One without a clean-up."""

    @endpoint
    def ping(self) -> str:
        return "pong"

    @endpoint
    def quit(self, how: str, reason: str) -> None:
        end_self(how, reason)

    @endpoint
    def quit_on(self, rank: int, how: str, reason: str) -> int:
        here = context().message_rank.rank
        if here == rank:
            end_self(how, reason)
        return here

    @endpoint
    def quit_when_idle(self, gate: Gate) -> None:
        me = context().actor_instance

        def run() -> None:
            gate.pass_through()
            me.kill("nothing to do")

        threading.Thread(target=run).start()


class AsyncSelfEnding(Actor):
    """An async one."""

    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    async def ping(self) -> str:
        return "pong"

    @endpoint
    async def quit(self, how: str, reason: str) -> str:
        end_self(how, reason)
        append(self.path, "went on to where it waits")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            append(self.path, "cancelled")
            raise
        return "a value"

    @endpoint
    async def quit_and_return(self, how: str, reason: str) -> str:
        end_self(how, reason)
        return "a value"

    @endpoint
    async def quit_on_a_thread(self, how: str, reason: str) -> str:
        me = context().actor_instance
        threading.Thread(target=lambda: getattr(me, how)(reason)).start()
        return await self._wait()

    @concurrent_endpoint
    async def wait_beside(self, gate: Gate) -> str:
        await asyncio.to_thread(gate.pass_through)
        return await self._wait()

    @concurrent_endpoint
    async def quit_beside(self, how: str, reason: str) -> str:
        end_self(how, reason)
        return await self._wait()

    async def _wait(self) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            append(self.path, "cancelled")
            raise
        return "a value"

    async def __cleanup__(self, exception: BaseException | None) -> None:
        await asyncio.sleep(0)
        append(self.path, f"cleaned up after {type(exception).__name__}")


class QuitsInCleanup(Actor):
    """Finds out only at its end that it has failed."""

    @endpoint
    def ping(self) -> str:
        return "pong"

    def __cleanup__(self, exception: BaseException | None) -> None:
        end_self("abort", "what I wrote is broken")


class Owner(Actor):
    """Owns an actor that may end itself, and says what it is told."""

    def __init__(self, path: str) -> None:
        self.told: list[str] = []
        self.child = context().actor_instance.proc.spawn("child", SelfEnding, path)

    @endpoint
    def let_child(self, how: str, reason: str) -> str:
        try:
            return self.child.quit.call_one(how, reason).get(timeout=60)
        except SupervisionError as error:
            return error.failures[0].what

    @endpoint
    def was_told(self) -> list[str]:
        return self.told

    def __supervise__(self, failure: Any) -> bool:
        self.told.append(failure.failures[0].what)
        return True
