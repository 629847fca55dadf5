"""`%monarch static`: views as plain HTML, for notebooks that are exported or read elsewhere."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from monarch_jupyter.cells.static_views import shared_static_views, static_copy
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.rendering.units import count

# `auto` shows plain HTML where a program executes the notebook, and live views elsewhere.
_CHOICES: dict[str, bool | None] = {"on": True, "off": False, "auto": None}


def static(what: bool | str | Path) -> Path | None:
    """Show views as plain HTML from now on (`True`), or live (`False`).

    Given a path, write a copy of that saved notebook beside it, with HTML in the place of widgets,
    and return the path of the copy.

    Raises:
        CommandError: that file can't be read or is no notebook; no extension is loaded.
    """
    return _copied(what)[0] if isinstance(what, str | Path) else _turn(what)


def _turn(on: bool | None) -> None:
    views = shared_static_views()
    if views is None:
        raise CommandError("static is for notebooks: %load_ext monarch_jupyter first")
    views.turn(on)


def _copied(path: str | Path) -> tuple[Path, int]:
    try:
        return static_copy(Path(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no notebook"
        raise CommandError(f"static can't copy {path}: {why}; name a saved .ipynb file") from None


def _run(invocation: Invocation) -> None:
    words = invocation.arguments.positionals
    if len(words) > 1:
        raise CommandError("static takes on, off, auto, or one saved notebook")
    if words and words[0] not in _CHOICES:
        copy, number = _copied(words[0])
        sys.stdout.write(f"wrote {copy}: {count(number, 'view')} shown as plain HTML\n")
        return
    if words:
        _turn(_CHOICES[words[0]])
    views = shared_static_views()
    on = views is not None and views.on
    sys.stdout.write(f"views are {'plain HTML, which exports keep' if on else 'live'}\n")


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    notebooks = [str(path) for path in sorted(Path.cwd().glob("*.ipynb"))]
    return [] if words else [*_CHOICES, *(Path(one).name for one in notebooks)]


COMMAND = Command(
    name="static",
    usage="static [on | off | auto | NOTEBOOK.ipynb]",
    summary="show views as plain HTML, which exports keep; or copy a saved notebook that way",
    run=_run,
    examples=("%monarch static on", "%monarch static report.ipynb"),
    complete=_complete,
)
