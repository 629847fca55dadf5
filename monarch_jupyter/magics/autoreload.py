"""`%monarch autoreload`: edited modules take effect, in the notebook and on every rank."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from monarch.frontend import Reload
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.ranks.autoreload import Autoreload

_shell: Any = None
_say: Callable[[str], object] | None = None
_autoreload: Autoreload | None = None
_every_cell = False


def autoreload(on: bool | None = None) -> list[Reload]:
    """Reload modules of your own that were edited, here and on the ranks of all meshes.

    `True` reloads before each cell from now on, `False` stops that. `None` reloads once, now; the
    first such call only records the versions of files. Returns the edited modules, each with the
    error that prevented its reload here, if any.

    Functions and classes are patched wherever they are referenced, and live actors take the new
    class; their state is kept.

    Raises:
        CommandError: `True` outside of a notebook.
    """
    global _autoreload
    if on is False:
        close()
        return []
    begins = _autoreload is None
    if on and _shell is None:
        raise CommandError(
            "autoreload on needs the extension, %load_ext monarch_jupyter; in a program call "
            "autoreload() where edits are to take effect"
        )
    if _autoreload is None:
        _autoreload = Autoreload(_say or _to_stderr)
    if on:
        _reload_each_cell(True)
    return [] if begins else _reload()


def install(shell: Any, say: Callable[[str], object]) -> None:
    """Prepare for this shell; `say` writes a line into the cell."""
    global _shell, _say
    _shell, _say = shell, say


def close() -> None:
    """Turn it off, and stop the reloading actors on ranks. Idempotent."""
    global _autoreload
    _reload_each_cell(False)
    old, _autoreload = _autoreload, None
    if old is not None:
        old.close()


def restore() -> None:
    """Undo `install`. Idempotent."""
    global _shell, _say
    close()
    _shell = _say = None


def _reload_each_cell(on: bool) -> None:
    global _every_cell
    if on != _every_cell and _shell is not None:
        change = _shell.events.register if on else _shell.events.unregister
        change("pre_run_cell", _before_cell)
        _every_cell = on


def _before_cell(*_: object) -> None:
    _reload()


def _reload() -> list[Reload]:
    assert _autoreload is not None
    if _shell is None:
        return _autoreload.reload_edited(vars(sys.modules["__main__"]))
    return _autoreload.reload_edited(_shell.user_ns, here=not _ipython_reloads())


def _ipython_reloads() -> bool:
    """Whether IPython's own autoreload is on, which then reloads in this process."""
    magics = _shell.magics_manager.registry.get("AutoreloadMagics")
    return bool(getattr(getattr(magics, "_reloader", None), "enabled", False))


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")


def _run(invocation: Invocation) -> None:
    words = invocation.arguments.positionals
    if len(words) > 1 or (words and words[0] not in ("on", "off", "now")):
        raise CommandError("autoreload takes on, off or now; `%monarch autoreload on`")
    if words and words[0] == "now":
        for one in autoreload():
            if one.error is None:
                sys.stdout.write(f"reloaded {one.module}\n")
        return
    if words:
        autoreload(words[0] == "on")
    state = "on: edited modules are reloaded before each cell" if _every_cell else "off"
    sys.stdout.write(f"autoreload is {state}\n")


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return [] if words else ["on", "off", "now"]


COMMAND = Command(
    name="autoreload",
    usage="autoreload [on | off | now]",
    summary="reload edited modules, here and on all ranks, before each cell; state is kept",
    run=_run,
    examples=("%monarch autoreload on",),
    complete=_complete,
)
