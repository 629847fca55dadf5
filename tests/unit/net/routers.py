"""Routers in the hands of a test: what one receives, whom it cuts off, who waits on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from monarch._src.net.local.router import Router
from tests.unit.net.pipe_end import Stranger

MakeRouter = Callable[[str], Router]
MakeStranger = Callable[..., Stranger]
PATIENCE_S = 30.0
LARGE = 8 << 20  # more than any system holds for a socket


def address(folder: Path, name: str) -> str:
    return f"ipc://{folder}/{name}"


def received(router: Router, *others: Router) -> list[bytes]:
    """The next message; meanwhile the others do what their sending has left to do."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        parts = router.receive()
        if parts is not None:
            return [bytes(part) for part in parts]
        for other in others:
            other.readable()
        router.wait(0.001 if others else PATIENCE_S)
    raise AssertionError("nothing came")


def cut_off(router: Router, stranger: Stranger) -> bool:
    """Whether that router has closed the stranger's pipe, or does so now."""
    stranger.socket.setblocking(False)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        router.wait(0.001)
        assert router.receive() is None
        try:
            return stranger.is_cut_off()
        except BlockingIOError:
            continue
    return False


@contextmanager
def led(router: Router) -> Iterator[None]:
    """Somebody waits on that router, without end, and takes nothing."""
    over = False

    def leads() -> None:
        while not over:
            router.wait(None)

    thread = threading.Thread(target=leads)
    thread.start()
    try:
        yield
    finally:
        over = True
        router.wake()
        thread.join(timeout=PATIENCE_S)
    assert not thread.is_alive()
