"""`%monarch autopx`: every cell runs on the ranks of a mesh, until it is switched off.

Runs in: the kernel's main thread, as one of IPython's transforms of input.
Invariants: a transform has no side effects, since the kernel applies it more than once to a cell. A
cell that the user meant for ranks never runs in the kernel: where the mesh has gone, it is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from IPython.core import inputtransformer2

from monarch import frontend
from monarch.actor import ValueMesh
from monarch_jupyter.actions.run_cell import RankCell, run_on
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import as_spawned, find_mesh, mesh_names, places_of
from monarch_jupyter.meshes.selection import MeshSelection, parse_selection
from monarch_jupyter.rendering.html import card, toned
from monarch_jupyter.rendering.units import count

OFF = "autopx is off: cells run in the notebook"
_ipython: Any = inputtransformer2
_CLEANS: tuple[Callable[[list[str]], list[str]], ...] = (
    _ipython.leading_indent, _ipython.classic_prompt, _ipython.ipython_prompt
)  # fmt: skip
"""What IPython does to every cell, without changing the number of its lines."""


class Autopx:
    """Redirects the cells of one shell to ranks, from `install` until `restore`.

    `say` writes a line into the running cell.
    """

    has_side_effects = True
    """Has IPython leave this out when it only asks whether a cell is complete."""

    def __init__(self, shell: Any, say: Callable[[str], object]) -> None:
        self._shell = shell
        self._say = say
        self._transforms: list[Any] = shell.input_transformer_manager.cleanup_transforms
        self.selection: MeshSelection | None = None
        """The ranks that cells run on; None while autopx is off."""

    def install(self) -> None:
        """Transform cells from now on, before IPython drops empty lines that errors would count."""
        self._transforms.insert(0, self)
        share_autopx(self)

    def restore(self) -> None:
        """Undo `install`. Idempotent."""
        share_autopx(None)
        self.selection = None
        if self in self._transforms:
            self._transforms.remove(self)

    def __call__(self, lines: list[str]) -> list[str]:
        """The cell as a call that runs it on the ranks, unless it is one for the notebook."""
        if self.selection is None or not self._is_of_the_user(lines) or is_for_the_notebook(lines):
            return lines
        for clean in _CLEANS:
            lines = clean(lines)
        return [f"get_ipython().run_cell_magic('monarch', 'autopx', {''.join(lines)!r})\n"]

    def _is_of_the_user(self, lines: Sequence[str]) -> bool:
        """Whether a front end has sent this as a cell with a number.

        Extensions of a front end look at the kernel's variables in silent cells without one, and
        code in the kernel has IPython run cells too.
        """
        if not hasattr(self._shell, "get_parent"):
            return True  # a terminal has no other
        parent: Mapping[str, Any] = self._shell.get_parent() or {}
        content: Mapping[str, Any] = parent.get("content", {})
        sent = str(content.get("code", "")).rstrip("\n") == "".join(lines).rstrip("\n")
        return sent and bool(content.get("store_history", True)) and not content.get("silent")

    def switch_off_without_ranks(self) -> None:
        """End autopx if no rank is left to run cells, with a line about the reason."""
        why = self.end_without_ranks()
        if why:
            self._say(f"monarch: autopx is off: {why}")

    def end_without_ranks(self) -> str:
        """End autopx if no rank is left to run cells; the reason, or an empty text."""
        if self.selection is None:
            return ""
        why = _why_no_ranks(self.selection, self._shell.user_ns)
        if why:
            self.selection = None
        return why

    def run(self, cell: str, number: int) -> ValueMesh[object] | None:
        """Run a cell on the ranks.

        Raises:
            CommandError: autopx is off, or no rank is left; nothing has run. As `on` otherwise.
        """
        namespace = self._shell.user_ns
        selection = self.selection
        if selection is None:
            raise CommandError("autopx takes no cell: write %monarch autopx, with a single %")
        why = self.end_without_ranks()
        if why:
            raise CommandError(
                f"this cell has not run, and autopx is off: {why}. Run the cell again to run it in "
                "the notebook"
            )
        # The source does not tell a reader of the saved notebook that this cell ran on ranks.
        text = f"autopx: on {_ranks_text(selection, namespace)}"
        bundle = {"text/plain": text, "text/html": card(toned(text, "muted"))}
        self._shell.display_pub.publish(bundle)
        return run_on(RankCell(selection, namespace, cell, number, headed=False))


def is_for_the_notebook(lines: Sequence[str]) -> bool:
    """Whether the cell runs in the kernel: it is empty, or its first line of code is `%monarch`."""
    first = next((ln.strip() for ln in lines if ln.strip() and not ln.strip().startswith("#")), "")
    return not first or first.split()[0] in ("%monarch", "%%monarch")


def state_text(selection: MeshSelection, namespace: Mapping[str, object], word: str = "") -> str:
    """The line about an autopx that is on; `word` stands after "on"."""
    return (
        f"autopx is on{word}: cells run on {_ranks_text(selection, namespace)} until `%monarch "
        "autopx off`; cells that begin with %monarch run in the notebook"
    )


def _ranks_text(selection: MeshSelection, namespace: Mapping[str, object]) -> str:
    mesh = find_mesh(selection.name, namespace)
    selection.check(mesh.sizes)
    part = mesh.slice(**selection.dims) if selection.dims else mesh
    return f"{selection} ({count(len(part), 'rank', 'ranks')})"


def _why_no_ranks(selection: MeshSelection, namespace: Mapping[str, object]) -> str:
    """The reason for which no rank of the selection can run a cell; empty if some can."""
    try:
        mesh = find_mesh(selection.name, namespace)
        selection.check(mesh.sizes)
    except CommandError as error:
        return str(error)
    part = mesh.slice(**selection.dims) if selection.dims else mesh
    spawned = as_spawned(mesh)
    left = set(places_of(spawned, part).values()).difference(frontend.failed_ranks(spawned))
    return "" if left else f"all ranks of {selection} have died"


_shared: Autopx | None = None


def share_autopx(autopx: Autopx | None) -> None:
    """Make this the one that the magic switches."""
    global _shared
    _shared = autopx


def _run(invocation: Invocation) -> ValueMesh[object] | None:
    autopx = _shared
    if autopx is None:
        raise CommandError("autopx needs the extension: %load_ext monarch_jupyter")
    words = invocation.arguments.positionals
    if invocation.cell is not None:
        if words:
            raise CommandError(
                f"autopx takes no cell: write %monarch autopx {' '.join(words)}, with a single %"
            )
        return autopx.run(invocation.cell, invocation.number)
    sys.stdout.write(f"{_switched(autopx, words, invocation.namespace)}\n")
    return None


def _switched(autopx: Autopx, words: Sequence[str], namespace: Mapping[str, object]) -> str:
    before = autopx.selection
    if words == ("off",) or (not words and before is None):
        autopx.selection = None
        return OFF
    if not words:
        assert before is not None
        return state_text(before, namespace)
    selection = parse_selection(" ".join(words))
    line = state_text(selection, namespace, " already" if selection == before else "")
    why = _why_no_ranks(selection, namespace)
    if why:
        raise CommandError(f"autopx has no rank to run cells on: {why}")
    autopx.selection = selection
    return line


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return [] if words else ["off", *mesh_names()]


COMMAND = Command(
    name="autopx",
    usage="autopx [MESH[dim=A:B, ...] | off]",
    summary="run every cell on these ranks until `off`, but for cells that begin with %monarch",
    run=_run,
    examples=("%monarch autopx workers", "%monarch autopx off"),
    wraps_cells=True,
    complete=_complete,
)
