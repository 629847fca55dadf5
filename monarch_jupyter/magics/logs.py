"""`%monarch logs`: whole logs of ranks, page by page."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, MutableMapping, Sequence
from typing import TYPE_CHECKING

from monarch import observe
from monarch.actor import ValueMesh
from monarch_jupyter.errors import CommandError, did_you_mean
from monarch_jupyter.lines.log_store import shared_store
from monarch_jupyter.magics.arguments import Option, whole_number
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.selection import MeshSelection, parse_selection
from monarch_jupyter.rendering.lines import LogPage, page_text

if TYPE_CHECKING:
    from monarch_jupyter.widgets.log_view import LogView

PAGE = 100
NOT_LOADED = "logs are recorded once the extension is loaded: run %load_ext monarch_jupyter"


def logs(
    mesh: str,
    *,
    ranks: Collection[int] | None = None,
    grep: str | None = None,
    tail: int | None = None,
    page: int | None = None,
) -> LogPage:
    """Lines that ranks of a mesh have written since the extension was loaded, in order of arrival.

    Returns the last hundred, the last `tail`, or a `page` of a hundred, page 1 being the oldest.
    `ranks` limits them to these ranks, `grep` to lines that match this regular expression. The
    lines of a mesh stay after the mesh has ended.

    Raises:
        CommandError: no such mesh has written anything, no such page, no regular expression.
    """
    store = shared_store()
    if store is None:
        raise CommandError(NOT_LOADED)
    if tail is not None and page is not None:
        raise CommandError("logs takes --tail or --page, not both")
    if grep is not None:
        try:
            re.compile(grep)
        except re.error as error:
            raise CommandError(f"--grep {grep} is not a regular expression: {error}") from None
    try:
        return store.page(
            mesh, ranks=ranks, grep=grep, page=page, length=PAGE if tail is None else tail
        )
    except KeyError:
        raise CommandError(_nothing_of(mesh, store.names())) from None
    except IndexError as error:
        raise CommandError(f"there is no page {page}; the last one is --page {error}") from None


def _nothing_of(mesh: str, names: Sequence[str]) -> str:
    if any(live.name == mesh for live in observe.meshes()):
        return f"{mesh} has written nothing yet"
    listed = f"; there is {', '.join(names)}" if names else "; no rank has written anything yet"
    return f"there are no lines of mesh '{mesh}'{did_you_mean(mesh, names) or listed}"


def log_view(mesh: str) -> LogView:
    """A live view of the lines of a mesh, with pages and a filter.

    Raises:
        CommandError: the extension is not loaded.
    """
    # Widgets are heavy and only a kernel has them; procs import this package without.
    from monarch_jupyter.page.shared import shared_request_handler
    from monarch_jupyter.widgets.log_view import LogView

    store = shared_store()
    if store is None:
        raise CommandError(NOT_LOADED)
    return LogView(shared_request_handler(), store, mesh=mesh)


def _run(invocation: Invocation) -> LogView | None:
    arguments = invocation.arguments
    if not arguments.positionals:
        raise CommandError("logs needs a mesh; for example `%monarch logs workers[gpus=3]`")
    selection = parse_selection(" ".join(arguments.positionals))
    if arguments.has("--live"):
        if len(arguments.options) > 1 or selection.dims:
            raise CommandError("logs takes --live alone; the view itself has pages and a filter")
        return log_view(selection.name)
    ranks = _ranks(selection)
    for value in arguments.values("--rank"):
        ranks = {whole_number("--rank", value, least=0)} | (ranks or set())
    tail = [whole_number("--tail", value) for value in arguments.values("--tail")]
    page = [whole_number("--page", value) for value in arguments.values("--page")]
    grep = arguments.values("--grep")
    found = logs(
        selection.name,
        ranks=ranks,
        grep=grep[0] if grep else None,
        tail=tail[0] if tail else None,
        page=page[0] if page else None,
    )
    sys.stdout.write(page_text(found, several_pages=_pages(found)) + "\n")
    return None


def _pages(page: LogPage) -> str:
    pages = -(-page.total // PAGE)
    if page.total <= len(page.lines):
        return ""
    return " (--page 1 has all)" if pages == 1 else f" (--page 1 to --page {pages} have all)"


def _ranks(selection: MeshSelection) -> set[int] | None:
    if not selection.dims:
        return None
    for mesh in observe.meshes():
        if mesh.name == selection.name:
            selection.check(mesh.sizes)
            numbered = ValueMesh(mesh.extent, range(len(mesh)))
            return set(numbered.slice(**selection.dims).values())
    raise CommandError(
        f"{selection.name} has ended, so its dims are not known; name ranks with --rank"
    )


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    store = shared_store()
    names = store.names() if store is not None else []
    return [] if words else names


COMMAND = Command(
    name="logs",
    usage="logs NAME[dim=A:B, ...] [--rank N] [--grep TEXT] [--tail N | --page N] | --live",
    summary="show the last hundred lines that ranks have written, or any page of them",
    run=_run,
    options=(
        Option("--live", "a live view, with pages and a filter"),
        Option("--rank", "only this rank, counted from 0 across the mesh", "N", True),
        Option("--grep", "only lines that match this regular expression", "TEXT"),
        Option("--tail", "only the last N lines", "N"),
        Option("--page", "page N of a hundred lines; page 1 has the oldest", "N"),
    ),
    examples=("%monarch logs workers --tail 20", "%monarch logs workers[gpus=3] --grep 'loss|nan'"),
    complete=_complete,
)
