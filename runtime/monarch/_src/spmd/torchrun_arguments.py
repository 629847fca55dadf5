"""The arguments of torchrun, read by torch's own parser.

torchrun starts the ranks of one node and finds the others by a rendezvous. Here one program starts
all ranks, so options about the rendezvous have no effect; an option that would have another effect
is refused, with the remedy.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import msgspec

from monarch._src.spmd.torch_modules import torch_distributed

# Options that are refused unless they have their default, each with the remedy.
_REFUSED = {
    "max_restarts": "a run that fails is not begun again; call it again, from your checkpoint",
    "node_rank": "the ranks of all nodes are started from here; give --nnodes only",
    "log_dir": "the output of all ranks comes here; write it to a file with `> FILE`",
    "redirects": "the output of all ranks comes here; write it to a file with `> FILE`",
    "tee": "the output of all ranks comes here; write it to a file with `| tee FILE`",
    "local_ranks_filter": "the output of all ranks comes here, marked by rank",
    "duplicate_stdout_filters": "the output of all ranks comes here, marked by rank",
    "duplicate_stderr_filters": "the output of all ranks comes here, marked by rank",
    "logs_specs": "the output of all ranks comes here, marked by rank",
    "event_log_handler": "monarch.observe has the events",
    "local_addr": "give --master-addr",
    "numa_binding": "HostMesh.spawn_procs(proc_bind=...) binds processes",
    "virtual_local_rank": "leave it out: ranks see all devices of their host",
    "shutdown_timeout": "ranks that outlive a failure are ended at once",
}
_DEVICES = ("auto", "gpu", "cpu", "xpu")


class TorchrunArgumentError(ValueError):
    """Arguments that torchrun, or its stand-in here, does not take."""


class Launch(msgspec.Struct, frozen=True):
    """A program, and the number of its ranks.

    `nodes` is None if `--nnodes` was not given. `command` is a program, its arguments and, for a
    module, `-m` before it; `python` is False if it is to be executed as it is.
    """

    ranks_per_node: int
    nodes: int | None
    command: tuple[str, ...]
    python: bool
    env: dict[str, str]
    master_addr: str | None
    master_port: int | None


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

    def fail(message: str) -> NoReturn:
        raise TorchrunArgumentError(f"{prog}: {message}")

    parser.error = fail
    words = list(arguments)
    if script is not None:
        at = _end_of_options(parser, words)
        words[at : at + (words[at : at + 1] == ["--"])] = [script]
    parsed = parser.parse_args(words)
    for name, remedy in _REFUSED.items():
        if getattr(parsed, name, None) != parser.get_default(name):
            raise TorchrunArgumentError(
                f"{prog}: --{name.replace('_', '-')} is not supported: {remedy}"
            )
    given_port = parsed.master_port is not None
    given_addr = parsed.master_addr != parser.get_default("master_addr")
    if given_addr and not given_port:
        raise TorchrunArgumentError(f"{prog}: --master-addr without --master-port: give both")
    return Launch(
        _ranks_per_node(run, parsed.nproc_per_node, prog), _nodes(run, parsed, parser, prog),
        _command(parsed, prog), not parsed.no_python, _environment(parsed),
        parsed.master_addr if given_port else None,
        _port(parsed.master_port, prog) if given_port else None,
    )  # fmt: skip


def help_text(prog: str = "monarch torchrun") -> str:
    """The help of torchrun's options. Raises ModuleNotFoundError if torch is not installed here."""
    torch_distributed()
    run: Any = import_module("torch.distributed.run")
    parser: Any = run.get_args_parser()
    parser.prog = prog
    return str(parser.format_help())


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


def _nodes(run: Any, parsed: Any, parser: Any, prog: str) -> int | None:
    if parsed.nnodes == parser.get_default("nnodes"):
        return None
    try:
        least, most = run.parse_min_max_nnodes(parsed.nnodes)
    except (RuntimeError, ValueError):
        least = most = 0
    if not 1 <= least == most:
        raise TorchrunArgumentError(
            f"{prog}: --nnodes {parsed.nnodes} is not a number of nodes from 1; a run begins with "
            "all of its nodes"
        )
    return int(most)


def _command(parsed: Any, prog: str) -> tuple[str, ...]:
    if parsed.no_python and (parsed.module or parsed.run_path):
        raise TorchrunArgumentError(f"{prog}: --no-python goes neither with -m nor --run-path")
    words = (parsed.training_script, *parsed.training_script_args)
    return ("-m", *words) if parsed.module else words


def _port(port: int, prog: str) -> int:
    if not 0 <= port < 1 << 16:
        raise TorchrunArgumentError(f"{prog}: --master-port {port} is not a port from 0 to 65535")
    return port


def _environment(parsed: Any) -> dict[str, str]:
    env = {"ROLE_NAME": str(parsed.role)}
    if parsed.rdzv_id != "none":
        env["TORCHELASTIC_RUN_ID"] = str(parsed.rdzv_id)
    # As torchrun does, so that the threads of many ranks do not crowd one host.
    if parsed.nproc_per_node != "1" and "OMP_NUM_THREADS" not in os.environ:
        env["OMP_NUM_THREADS"] = "1"
    return env
