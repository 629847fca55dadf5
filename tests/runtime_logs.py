"""What the runtime says only to its logs: errors that it survived.

A handler that raises is logged and goes no further, in the client as in an agent; without this a
test would pass beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from monarch._src.mesh import client


class RuntimeErrors(logging.Handler):
    """Records of level ERROR and above under `monarch`, while entered."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        self._said: list[str] = []

    def __enter__(self) -> RuntimeErrors:
        logging.getLogger("monarch").addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        logging.getLogger("monarch").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self._said.append(self.format(record))

    def take(self) -> list[str]:
        """What was said since the last look."""
        said, self._said = self._said, []
        return said


@contextmanager
def watched_agents(folder: Path) -> Generator[Callable[[], list[str]]]:
    """Yield a function: the errors in the logs of all agents that were started since, each once.

    `folder` keeps their logs, as second names: the agent removes the first ones when it ends.
    """
    read: dict[Path, int] = {}

    def began(started: client.ClientSession) -> None:
        log = folder / f"log-of-{started.directory.name}"
        if log in read:  # it was attached to again
            return
        log.hardlink_to(started.directory / "agent.log")
        read[log] = 0

    def taken() -> list[str]:
        errors: list[str] = []
        for log, done in read.items():
            said = log.read_bytes()
            read[log] = len(said)
            errors += _errors(said[done:].decode(errors="replace"))
        return errors

    client.on_start(began)
    try:
        yield taken
    finally:
        client._on_start.remove(began)  # pyright: ignore[reportPrivateUsage]


def _errors(text: str) -> list[str]:
    # All but warnings: tracebacks, and what libraries print, are errors too.
    return [line for line in text.splitlines() if " WARNING " not in line and line.strip()]
