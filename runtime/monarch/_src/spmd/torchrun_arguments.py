"""The arguments of torchrun, read by torch's own parser.

torchrun starts the ranks of one node and finds the others by a rendezvous. Here one program starts
all ranks, so options about the rendezvous have no effect; an option that would have another effect
is refused, with the remedy.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import msgspec

from monarch._src.spmd.torch_modules import torch_distributed
from monarch._src.system.ending_signals import USUAL, number_of

# Options that are refused unless they have their default, each with the remedy.
_REFUSED = {
    "node_rank": "the ranks of all nodes are started from here; give --nnodes only",
    "log_dir": "the output of all ranks comes here; write it to a file with `> FILE`",
    "redirects": "the output of all ranks comes here; write it to a file with `> FILE`",
    "local_ranks_filter": "the output of all ranks comes here, marked by rank",
    "duplicate_stdout_filters": "the output of all ranks comes here, marked by rank",
    "duplicate_stderr_filters": "the output of all ranks comes here, marked by rank",
    "logs_specs": "the output of all ranks comes here, marked by rank",
    "event_log_handler": "monarch.observe has the events",
    "local_addr": "give --master-addr",
    "numa_binding": "HostMesh.spawn_procs(proc_bind=...) binds processes",
    "virtual_local_rank": "leave it out: ranks see all devices of their host",
}
SHUTDOWN_S = 30
"""How long ranks may run on after a signal, unless `--shutdown-timeout` says so; as in torchrun."""
INTERRUPT_S = 5
"""The same after an interrupt of a program or a cell, where a person waits."""
_SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_OPTIONS = re.compile(r"--\w[\w-]*(?:/--\w[\w-]*)*")
_DEVICES = ("auto", "gpu", "cpu", "xpu")


class TorchrunArgumentError(ValueError):
    """Arguments that torchrun, or its stand-in here, does not take."""


class Launch(msgspec.Struct, frozen=True):
    """A program, and the number of its ranks.

    `nodes` is None if `--nnodes` was not given; a run takes `least_nodes` if there are no more. A
    run that fails is begun again `restarts` times. `command` is a program, its arguments and, for a
    module, `-m` before it; `python` is False if it is to be executed as it is.

    `signals` names those that the command line hands on to the ranks. `shutdown_s` and
    `interrupt_s` are how long ranks may run on after a signal of the command line and after an
    interrupt of a program, in seconds.
    """

    ranks_per_node: int
    least_nodes: int
    nodes: int | None
    command: tuple[str, ...]
    python: bool
    env: dict[str, str]
    master_addr: str | None
    master_port: int | None
    signals: tuple[str, ...]
    shutdown_s: int
    interrupt_s: int
    restarts: int


def parse_arguments(
    arguments: Sequence[str], *, prog: str = "monarch torchrun", script: str | None = None
) -> Launch:
    """Read the arguments of torchrun.

    Args:
        script: stands for the script, so that all words after the options, or after `--`, are the
            script's own.

    Raises:
        TorchrunArgumentError: they cannot be read, or an option is not supported here.
        ModuleNotFoundError: torch is not installed here.
    """
    torch_distributed()
    run: Any = import_module("torch.distributed.run")
    parser: Any = run.get_args_parser()
    parser.prog = prog
    words = list(arguments)
    end = _end_of_options(parser, words)
    if script is not None:
        words[end : end + (words[end : end + 1] == ["--"])] = [script]
    try:
        return _launch(run, parser, words, prog)
    except TorchrunArgumentError as error:
        raise TorchrunArgumentError(_by_origin(str(error), words[:end])) from None


def _launch(run: Any, parser: Any, words: Sequence[str], prog: str) -> Launch:
    def fail(message: str) -> NoReturn:
        raise TorchrunArgumentError(f"{prog}: {message}")

    parser.error = fail
    parsed = parser.parse_args(words)
    for name, remedy in _REFUSED.items():
        if getattr(parsed, name, None) != parser.get_default(name):
            option = f"--{name.replace('_', '-')}"
            raise TorchrunArgumentError(f"{prog}: {option} is not supported: {remedy}")
    given_port = parsed.master_port is not None
    given_addr = parsed.master_addr != parser.get_default("master_addr")
    if given_addr and not given_port:
        raise TorchrunArgumentError(f"{prog}: --master-addr without --master-port: give both")
    least, most = _nodes(run, parsed, parser, prog)
    shutdown_s = _shutdown_s(getattr(parsed, "shutdown_timeout", None), prog)
    return Launch(
        _ranks_per_node(run, parsed.nproc_per_node, prog), least, most,
        _command(parsed, prog), not parsed.no_python, _environment(parsed),
        parsed.master_addr if given_port else None,
        _port(parsed.master_port, prog) if given_port else None,
        _signals(getattr(parsed, "signals_to_handle", ",".join(USUAL)), prog),
        SHUTDOWN_S if shutdown_s is None else shutdown_s,
        INTERRUPT_S if shutdown_s is None else shutdown_s,
        _restarts(parsed.max_restarts, prog),
    )  # fmt: skip


def help_text(prog: str = "monarch torchrun") -> str:
    """The help of torchrun's options. Raises ModuleNotFoundError if torch is not installed here."""
    torch_distributed()
    run: Any = import_module("torch.distributed.run")
    parser: Any = run.get_args_parser()
    parser.prog = prog
    return str(parser.format_help())


def torchrun_options(words: Sequence[str]) -> list[str]:
    """The options of torchrun that may follow these words, as in `--nproc-per-node`.

    None follow the script, or an option whose value comes next. Options that `torchrun` refuses are
    not among them.

    Raises:
        ModuleNotFoundError: torch is not installed here.
    """
    torch_distributed()
    run: Any = import_module("torch.distributed.run")
    parser = run.get_args_parser()
    # A script in the place of the next word ends the options there, unless one takes it as a value.
    if _end_of_options(parser, [*words, "script"]) != len(words) or "--" in words:
        return []
    names: list[str] = []
    for action in parser._actions:
        known = [one for one in action.option_strings if one.startswith("--")]
        if action.dest not in _REFUSED and known:
            # Each is there with underscores too, which torch keeps for older command lines.
            names += [one for one in known if "_" not in one] or known
    return sorted(names)


def _end_of_options(parser: Any, words: Sequence[str]) -> int:
    """Where the options end: at `--`, or at the first word that no option takes."""
    takes_none = {
        option
        for action in parser._actions
        for option in action.option_strings
        if action.nargs == 0
    }
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return at
        at += 1 if "=" in words[at] or words[at] in takes_none else 2
    return min(at, len(words))


def _ranks_per_node(run: Any, text: str, prog: str) -> int:
    if not text.isdecimal() and text not in _DEVICES:
        raise TorchrunArgumentError(
            f"{prog}: --nproc-per-node {text!r} is neither a number nor {', '.join(_DEVICES)}"
        )
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            count = int(run.determine_local_world_size(text))
    except (RuntimeError, ValueError) as error:
        raise TorchrunArgumentError(f"{prog}: --nproc-per-node {text}: {error}") from None
    if count < 1:
        raise TorchrunArgumentError(f"{prog}: --nproc-per-node {text}: there is no rank to start")
    return count


def _nodes(run: Any, parsed: Any, parser: Any, prog: str) -> tuple[int, int | None]:
    """The least and the most nodes; 1 and None if the option was not given."""
    if parsed.nnodes == parser.get_default("nnodes"):
        return 1, None
    try:
        least, most = run.parse_min_max_nnodes(parsed.nnodes)
    except (RuntimeError, ValueError):
        least = most = 0
    if not 1 <= least <= most:
        raise TorchrunArgumentError(
            f"{prog}: --nnodes {parsed.nnodes} is neither a number of nodes from 1 nor two, as in "
            "2:4"
        )
    return int(least), int(most)


def _restarts(count: int, prog: str) -> int:
    if count < 0:
        raise TorchrunArgumentError(f"{prog}: --max-restarts {count} is not a number from 0")
    return count


def _by_origin(refusal: str, options: Sequence[str]) -> str:
    """The refusal, with torch's variable for each option that a variable gave."""
    words = (word.partition("=")[0].replace("_", "-") for word in options)
    typed = tuple(word for word in words if len(word) > 2 and word.startswith("--"))  # or a prefix

    def origin(found: re.Match[str]) -> str:
        option = found.group().partition("/")[0].replace("_", "-")  # argparse names both spellings
        variable = "PET_" + option.removeprefix("--").replace("-", "_").upper()
        if variable not in os.environ or any(option.startswith(word) for word in typed):
            return found.group()
        return variable

    return _OPTIONS.sub(origin, refusal)


def _command(parsed: Any, prog: str) -> tuple[str, ...]:
    if parsed.no_python and (parsed.module or parsed.run_path):
        raise TorchrunArgumentError(f"{prog}: --no-python goes neither with -m nor --run-path")
    words = (parsed.training_script, *parsed.training_script_args)
    return ("-m", *words) if parsed.module else words


def _port(port: int, prog: str) -> int:
    if not 0 <= port < 1 << 16:
        raise TorchrunArgumentError(f"{prog}: --master-port {port} is not a port from 0 to 65535")
    return port


def _signals(text: str, prog: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    try:
        for name in names:
            number_of(name)
    except ValueError as error:
        raise TorchrunArgumentError(f"{prog}: --signals-to-handle {text}: {error}") from None
    return names


def _shutdown_s(given: int | None, prog: str) -> int | None:
    """The seconds of the option, or of torch's variable; None if neither is given."""
    name = "--shutdown-timeout" if given is not None else _SHUTDOWN_VARIABLE
    text = os.environ.get(_SHUTDOWN_VARIABLE) if given is None else str(given)
    if text is None:
        return None
    if not text.isdecimal():
        raise TorchrunArgumentError(f"{prog}: {name} {text} is not a number of seconds from 0")
    return int(text)


def _environment(parsed: Any) -> dict[str, str]:
    env = {"ROLE_NAME": str(parsed.role)}
    if parsed.rdzv_id != "none":
        env["TORCHELASTIC_RUN_ID"] = str(parsed.rdzv_id)
    # As torchrun does, so that the threads of many ranks do not crowd one host.
    if parsed.nproc_per_node != "1" and "OMP_NUM_THREADS" not in os.environ:
        env["OMP_NUM_THREADS"] = "1"
    return env
