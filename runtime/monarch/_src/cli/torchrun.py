"""`monarch torchrun`: run a script on ranks, with the options of torchrun."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from monarch._src.cli.job import hosts_of
from monarch._src.errors import ActorError, JobError, RecoveryError, SessionError, SupervisionError
from monarch._src.system.ending_signals import SignalInterrupt, signals_as_interrupts
from monarch._src.system.process import BY_SIGNAL, signal_name

NAME = "torchrun"
USAGE = """usage: monarch torchrun [--job JOB[:MESH]] [options of torchrun] SCRIPT [argument ...]

Run a script on ranks, each with the environment that torchrun gives it. All ranks are started from
here: on this machine, or on the hosts of a job (--job, before the other options). The options below
are torchrun's own.
"""


def run(words: Sequence[str]) -> int:
    """Run a script as these words say.

    Returns:
        0; 1 if it failed, 2 for wrong usage, 128 + N if signal N ended the run.
    """
    from monarch._src.spmd import torchrun as runs
    from monarch._src.spmd import torchrun_arguments as arguments

    # The public module: it also sets up where output is shown.
    from monarch.actor import this_host

    try:
        if words[:1] in (["-h"], ["--help"]) or not words:
            print(USAGE)
            print(arguments.help_text())
            return 0 if words else 2
        job, words = _job_of(words)
        launch = arguments.parse_arguments(words)
        hosts = this_host() if job is None else hosts_of(job)
        with signals_as_interrupts(launch.signals):
            runs.run(launch, hosts)
    except arguments.TorchrunArgumentError as error:
        print(_prefixed(error), file=sys.stderr)
        return 2
    except SignalInterrupt as interrupt:
        name = signal_name(interrupt.number)
        print(f"monarch torchrun: {name} has ended the run", file=sys.stderr)
        return BY_SIGNAL + interrupt.number
    except (ActorError, SupervisionError, RecoveryError) as error:
        print(error, file=sys.stderr)
        return 1
    except (ImportError, OSError, ValueError, JobError, SessionError) as error:
        print(_prefixed(error), file=sys.stderr)
        return 1
    return 0


def _prefixed(error: Exception) -> str:
    text = str(error)
    return text if text.startswith("monarch torchrun: ") else f"monarch torchrun: {text}"


def _job_of(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The job that `--job` names, if it stands first, and the other words.

    Raises:
        ValueError: it names none.
    """
    first = words[0]
    if first.startswith("--job="):
        return first.removeprefix("--job="), words[1:]
    if first != "--job":
        return None, words
    if len(words) < 2:
        raise ValueError("--job takes the name of a job, or the path of its record")
    return words[1], words[2:]
