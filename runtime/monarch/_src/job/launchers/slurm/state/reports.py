"""Reports of the workers of a Slurm job. They travel in the comment of the job.

No I/O. A client reads the comment with the state of the job, so it needs neither a file that nodes
share with it nor a connection from them. `launchers.slurm.batch_program` writes it, so the format
is that of both. A comment of the user's own stays in front.
"""

from __future__ import annotations

from typing import Any

import msgspec

WORKERS = "monarch-workers "
PROBLEM = "monarch-problem "


class Worker(msgspec.Struct, frozen=True):
    """A worker that listens: `HOST:PORT` by which others may reach it, best first.

    `site`: the name by which it answers there.
    """

    node: str
    pid: int
    port: int
    addresses: list[str]
    site: str


class Problem(msgspec.Struct, frozen=True):
    """The reason why workers did not start. `answer`: the last answer of the program on that node.

    `last`: the last lines of the output, if the program has not answered.
    """

    node: str = ""
    status: int = 0
    answer: dict[str, Any] = {}
    last: list[str] = []


def workers(comment: str) -> list[Worker] | None:
    """The workers in that comment, by the index of their task; None: not all have reported.

    Raises:
        ValueError: the comment was changed.
    """
    _, found, text = comment.partition(WORKERS)
    return [_worker(word) for word in text.split()] if found else None


def problem(comment: str) -> Problem | None:
    """The problem in that comment. Raises as `workers`."""
    _, found, text = comment.partition(PROBLEM)
    if not found:
        return None
    try:
        return msgspec.json.decode(text, type=Problem)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the comment of the job was changed: {error}") from None


def _worker(word: str) -> Worker:
    rest, second, site = word.rpartition("@")
    process, at, addresses = rest.partition("@")
    node, slash, numbers = process.rpartition("/")
    pid, colon, port = numbers.partition(":")
    separated = at and second and slash and colon
    if not separated or not site or not pid.isdecimal() or not port.isdecimal():
        raise ValueError(f"the comment of the job was changed: {word!r}")
    return Worker(node, int(pid), int(port), [one for one in addresses.split(",") if one], site)


def own_comment(slurm_args: list[str]) -> str:
    """The comment that the user gives to the job, which stays in front of reports."""
    for index, word in enumerate(slurm_args):
        name, equals, value = word.partition("=")
        if name == "--comment":
            return value if equals else "".join(slurm_args[index + 1 : index + 2])
    return ""
