"""`%monarch debug`: ranks that are paused at breakpoints, and consoles for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING

import monarch.debug
from monarch import frontend
from monarch.actor import ActorMesh, ProcMesh
from monarch.debug import DebugError, Replies, Selection, WaitingRanks
from monarch_jupyter.debugger.pause_notices import run_console
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import find_mesh, mesh_names
from monarch_jupyter.meshes.selection import parse_selection

if TYPE_CHECKING:
    from monarch_jupyter.widgets.debugger import Debugger


def debug(which: ProcMesh | ActorMesh | str | None = None) -> WaitingRanks:
    """Ranks that are paused at breakpoints: on a mesh or slice, `"workers[gpus=0:4]"`, or anywhere.

    Programs resume or inspect them through `monarch.debug`.

    Raises:
        CommandError: there is no such dim.
    """
    try:
        return monarch.debug.waiting(which)
    except DebugError as error:
        raise CommandError(str(error)) from None


def _run(invocation: Invocation) -> object:
    arguments = invocation.arguments
    chosen = [name for name in _ACTIONS if arguments.has(name)]
    if len(chosen) > 1:
        raise CommandError(f"these options exclude each other: {' or '.join(chosen)}")
    try:
        if chosen:
            return _ACTIONS[chosen[0]](invocation)
        if not arguments.positionals:
            return debug()
        return _open(invocation)
    except DebugError as error:
        raise CommandError(str(error)) from None
    except TimeoutError as error:
        raise CommandError(f"{error}; `%monarch ls` shows the state of its host") from None


def _open(invocation: Invocation) -> Debugger | None:
    which = _selected(invocation)
    console = monarch.debug.attach(which, take=invocation.arguments.has("--take"))
    if invocation.arguments.has("--text") or not _has_page():
        run_console(console, input, sys.stdout.write, console.send("where"))
        return None
    # Widgets are heavy and only a kernel has them.
    from monarch_jupyter.widgets.debugger import Debugger

    return Debugger(console)


def _has_page() -> bool:
    kernels = sys.modules.get("ipykernel.kernelapp")
    return kernels is not None and kernels.IPKernelApp.initialized()


def _selected(invocation: Invocation) -> Selection | None:
    """The ranks that the line names, or None if it names none."""
    words = invocation.arguments.positionals
    if not words:
        return None
    selection = parse_selection(" ".join(words))
    found = invocation.namespace.get(selection.name)
    name = selection.name
    if isinstance(found, ActorMesh):
        name = frontend.call_target_of(found).name
    elif isinstance(found, ProcMesh):
        name = found.name
    return Selection(name, dict(selection.dims))


def _cast(invocation: Invocation) -> Replies:
    (command,) = invocation.arguments.values("--cast")
    return monarch.debug.cast(command, _selected(invocation), timeout=10.0)


def _continue(invocation: Invocation) -> Replies:
    return monarch.debug.resume(_selected(invocation))


def _break(invocation: Invocation) -> WaitingRanks:
    words = invocation.arguments.positionals
    if not words:
        raise CommandError("--break needs a mesh: `%monarch debug --break workers[gpus=3]`")
    return monarch.debug.break_in(_mesh_named(" ".join(words), invocation))


def _mesh_named(text: str, invocation: Invocation) -> ProcMesh | ActorMesh:
    """The mesh or slice that `text` names."""
    selection = parse_selection(text)
    bound = invocation.namespace.get(selection.name)
    mesh = bound if isinstance(bound, ActorMesh) else find_mesh(
        selection.name, invocation.namespace
    )  # fmt: skip
    selection.check(mesh.sizes)
    return mesh.slice(**selection.dims) if selection.dims else mesh


def _post_mortem(invocation: Invocation) -> None:
    (wanted,) = invocation.arguments.values("--post-mortem")
    if wanted not in ("on", "off"):
        raise CommandError(f"--post-mortem {wanted}: write on or off")
    monarch.debug.post_mortem(wanted == "on")


def _lab(invocation: Invocation) -> None:
    (wanted,) = invocation.arguments.values("--lab")

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")

    # It stands in front of ipykernel's debugger, which only a kernel has.
    from monarch_jupyter.debugger.lab import debug_in_lab, stop_debugging_in_lab

    if wanted == "off":
        stop_debugging_in_lab()
        say("JupyterLab's debugger is on the kernel")
        return
    say(debug_in_lab(_mesh_named(wanted, invocation), say))


_ACTIONS: dict[str, Callable[[Invocation], object]] = {
    "--cast": _cast,
    "--continue": _continue,
    "--break": _break,
    "--post-mortem": _post_mortem,
    "--lab": _lab,
}


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    if words and words[-1] == "--post-mortem":
        return ["on", "off"]
    names = list(dict.fromkeys(one.name for one in monarch.debug.waiting()))
    names += mesh_names()
    taken = any(not word.startswith("-") for word in words)
    return [*([] if taken else names), *(o.name for o in _OPTIONS if o.name not in words)]


_OPTIONS = (
    Option("--text", "use input() instead of the widget"),
    Option("--take", "take the rank over from another console"),
    Option(
        "--cast", "run this command on all of these paused ranks and fold their answers", "COMMAND"
    ),
    Option("--continue", "resume these ranks, or all paused ranks if none are named"),
    Option("--break", "pause these ranks where they are"),
    Option("--post-mortem", "pause each endpoint that fails, with its frames", "on|off"),
    Option("--lab", "attach JupyterLab's debugger to these ranks; off: to the kernel", "NAME|off"),
)
COMMAND = Command(
    name="debug",
    usage="debug [NAME[dim=3]]",
    summary="list ranks that are paused at breakpoints; with a name, open a console",
    run=_run,
    options=_OPTIONS,
    examples=(
        "%monarch debug",
        "%monarch debug workers[gpus=3]",
        "%monarch debug --cast 'p self.loss' workers[gpus=0:4]",
        "%monarch debug --continue",
        "%monarch debug --lab workers[gpus=3]",
    ),
    complete=_complete,
)
