"""`monarch exec`: run a command on the hosts of a job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from monarch._src.cli.job import chosen_hosts, kill_chosen
from monarch._src.errors import ActorError, JobError, SessionError, SupervisionError
from monarch._src.job.command_runner import PYTHON
from monarch._src.net.local.interrupt import uninterrupted
from monarch._src.system.ending_signals import SignalInterrupt, signals_as_interrupts
from monarch._src.system.process import BY_SIGNAL, signal_name


def run(
    words: Sequence[str],
    job: str | None,
    env: Sequence[str],
    *,
    everywhere: bool,
    point: str | None,
    per_host: str | None,
    workdir: str | None,
    output_dir: str | None,
    mesh: str | None = None,
    here: bool = False,
    script: str | None = None,
    module: str | None = None,
    kill: bool = False,
) -> int:
    """Run the command.

    Returns:
        its highest exit status; 1 if it could not be run, 128 + N if signal N ended it.
    """
    # The public module: it also sets up where faults and output are shown.
    from monarch import actor
    from monarch import job as jobs

    # The error of the call tells of a rank that dies, so the default hook would tell it twice.
    actor.unhandled_fault_hook = lambda _failure: None  # pyright: ignore[reportUnknownLambdaType]
    try:
        if script is not None:
            words = _script_words(script, words)
        elif module is not None:
            words = [PYTHON, "-m", module, *words]
        if not words:
            raise ValueError(
                "give a command, as in `monarch exec -- nvidia-smi -L`, or --script or -m"
            )
        variables = pairs(env, "--env", str)
        at = None if point is None else pairs(point.split(","), "--point", int)
        sizes = None if per_host is None else pairs(per_host.split(","), "--per-host", int)
        hosts = chosen_hosts(job, mesh, here=here, kill=kill)
        rank = 0 if at is None and not everywhere else None
        with signals_as_interrupts():
            status = _status_of(partial(
                jobs.exec_command, hosts, list(words), env=variables, workdir=workdir,
                output_dir=output_dir, rank=rank, point=at, per_host=sizes,
            ))  # fmt: skip
        if kill:
            kill_chosen(job)
    except SignalInterrupt as interrupt:
        name = signal_name(interrupt.number)
        print(f"monarch exec: {name} has ended the command", file=sys.stderr)
        return BY_SIGNAL + interrupt.number
    except (ActorError, SupervisionError) as error:
        print(error, file=sys.stderr)
        return 1
    except (OSError, ValueError, TypeError, LookupError, JobError, SessionError) as error:
        print(f"monarch exec: {error}", file=sys.stderr)
        return 1
    return status


def _status_of(begin: Callable[[], Any]) -> int:
    """The status of the command that `begin` begins.

    A signal ends the command first, then raises SignalInterrupt.
    """
    running: Any = None
    try:
        with uninterrupted():  # the command may run from here on
            running = begin()
        return running.get()
    except SignalInterrupt:
        if running is not None:
            from monarch._src.observe.open_calls import cancel_calls, open_calls

            cancel_calls(open_calls())
            with suppress(ActorError, SupervisionError):
                running.get()
        raise


def _script_words(script: str, arguments: Sequence[str]) -> list[str]:
    """The words that run a script of bash, by its text: the hosts need not have the file.

    Raises:
        OSError: there is no such file.
    """
    text = sys.stdin.read() if script == "-" else Path(script).read_text()
    return ["bash", "-c", text, "stdin" if script == "-" else script, *arguments]


def pairs(words: Sequence[str], option: str, kind: type[Any]) -> Mapping[str, Any]:
    """`NAME=VALUE` of each word.

    Raises:
        ValueError: a word is no such pair.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        try:
            if not name or not equals:
                raise ValueError
            found[name] = kind(value)
        except ValueError:
            example = "NAME=VALUE" if kind is str else "DIM=NUMBER"
            raise ValueError(f"{option} {word}: give {example}") from None
    return found
