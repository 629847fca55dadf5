"""Shows errors of ranks and of the runtime in the cell that raised them.

Runs in: the kernel's main thread, as IPython's exception handler. All other exceptions look as
before, or go to the handler that was installed before. Texts get hints about the `None` that
`broadcast` returns, and about magics.
"""

from __future__ import annotations

import asyncio
import linecache
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from monarch import frontend, observe
from monarch.actor import ActorError, MeshStoppedError, RankFailure, SupervisionError
from monarch.session import SessionError
from monarch_jupyter.cells.advice import advice, has_ended
from monarch_jupyter.cells.tracebacks import (
    MACHINERY,
    RUNTIME,
    is_of_runtime,
    shortened,
    with_short_causes,
    without_cause,
    without_extension,
    without_refusal,
    without_runtime,
)
from monarch_jupyter.errors import CommandError
from monarch_jupyter.rendering.failures import (
    cell_selection,
    died_in_cell,
    entry_lines,
    is_rank_cell,
    whole_tracebacks_html,
)
from monarch_jupyter.rendering.source_lines import (
    CellNames,
    ProgramLine,
    place_lines,
    rank_cell_mesh,
)
from monarch_jupyter.rendering.units import count

HANDLED = (ActorError, SupervisionError)
INTERRUPTED = (KeyboardInterrupt, asyncio.CancelledError)
"""Raised by the stop button in a cell, and in a cell that awaits."""
SETTLE = 2.0
"""Seconds at most that an error waits for other ranks to fail in the same way."""
QUIET = 0.06
"""Seconds without another failure after which it stops waiting, if all ranks have answered."""
OPEN = 0.4
"""The same if some ranks have not answered: they may fail soon or compute for hours."""
LOOK = 0.02

_NO_GROUP = "Default process group has not been initialized"  # torch's words
_NO_NAME = re.compile(r"name '(\w+)' is not defined")
# Not red: on the red ground of an error, in a dark theme, that is hard to read.
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


class CellErrors:
    """IPython's handler of exceptions, from `install` until `restore`."""

    def __init__(
        self,
        shell: InteractiveShell,
        flush: Callable[[], None],
        shown: Callable[[Iterable[RankFailure]], None],
    ) -> None:
        self._shell = shell
        self._flush = flush
        self._on_shown = shown
        self._before: tuple[Any, Any] = ((), None)

    def install(self) -> None:
        """Install the handler."""
        shell: Any = self._shell
        self._before = (shell.custom_exceptions, getattr(shell, "CustomTB", None))
        shell.set_custom_exc((Exception, *INTERRUPTED), self._handle)

    def restore(self) -> None:
        """Restore the handler that was there before."""
        shell: Any = self._shell
        shell.custom_exceptions, shell.CustomTB = self._before

    def _handle(
        self,
        shell: Any,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
        tb_offset: int | None = None,
    ) -> list[str]:
        if isinstance(error, INTERRUPTED):
            # Show where the cell was, not where it waited in the runtime.
            trace = without_runtime(trace)
            return self._show(shell, kind, error, trace, trace, tb_offset)
        if isinstance(error, CommandError):
            return self._show(shell, kind, error, without_extension(trace), trace, tb_offset)
        if isinstance(error, SyntaxError) and rank_cell_mesh(error.filename or ""):
            # As of any cell: the place, and no frames, since none of its lines has run.
            _remember(kind, error, trace)
            lines = shell.SyntaxTB.structured_traceback(kind, error, [])
            shell._showtraceback(kind, error, lines)
            return lines
        if not isinstance(error, HANDLED) or isinstance(error, MeshStoppedError):
            user_trace = without_refusal(error, trace)
            if user_trace is None:
                return self._show_as_before(shell, kind, error, trace, tb_offset)
            with without_cause(error):  # its text names its cause
                return self._show(shell, kind, error, user_trace, trace, tb_offset)
        settle(error)
        self._on_shown(error.failures)
        # Output from before the failure belongs above the error.
        self._flush()
        _remember(kind, error, trace)
        cell_names = cell_names_of(shell)
        lines = error_lines(error, trace, cell_names, shell.user_ns)
        lines += _notebook_name_hints(error, shell.user_ns)
        lines += _group_hints(error, shell.user_ns)
        shell._showtraceback(kind, error, lines)
        rest = whole_tracebacks_html(error.failures)
        if rest:
            hint = "(every frame: %monarch error)"
            shell.display_pub.publish({"text/html": rest, "text/plain": hint})
        return lines

    def _show(
        self,
        shell: Any,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
        whole: TracebackType | None,
        tb_offset: int | None,
    ) -> list[str]:
        """Show the error with this traceback; `%tb` and `%debug` get `whole`."""
        _remember(kind, error, whole)
        magic = _innermost_magic(trace)
        if magic is not None:
            with with_magics(error):
                lines = _lines_of_magic(kind, error, magic, trace, cell_names_of(shell))
            shell._showtraceback(kind, error, lines)
            return lines
        short = shortened(trace)
        with with_magics(error):
            lines = shell.InteractiveTB.structured_traceback(
                kind, error, short, tb_offset=tb_offset
            )
        if short is not trace:
            lines = [*lines, "\n(the middle of a recursion is left out; %tb has every frame)"]
        shell._showtraceback(kind, error, lines)
        return lines

    def _show_as_before(
        self,
        shell: Any,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
        tb_offset: int | None,
    ) -> list[str]:
        kinds, handler = self._before
        with with_short_causes(error, HANDLED), with_hint(error, trace):
            if handler is not None and isinstance(error, kinds):
                return handler(kind, error, trace, tb_offset)
            if shortened(trace) is not trace and is_of_runtime(trace):
                return self._show(shell, kind, error, trace, trace, tb_offset)
            shell.showtraceback(
                (kind, error, trace), tb_offset=tb_offset, running_compiled_code=True
            )
        return []


def _remember(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Record the error as IPython does, for `%tb`, `%debug` and `%monarch error`."""
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error


def settle(error: ActorError | SupervisionError) -> None:
    """Wait a moment for ranks that fail just after the first one."""
    began = grown = time.monotonic()
    known = len(error.failures)
    while (now := time.monotonic()) - began < SETTLE:
        if len(error.failures) != known:
            known, grown = len(error.failures), now
        if now - grown >= (OPEN if _is_open(error) else QUIET):
            return
        time.sleep(LOOK)  # no event says that another failure has joined an error


def _is_open(error: ActorError | SupervisionError) -> bool:
    """Whether ranks have yet to answer the call that raised this."""
    calls = {(call.actor_class, call.endpoint) for call in observe.open_calls()}
    return any((one.actor_class, one.endpoint) in calls for one in error.failures)


def _owing_lines(error: ActorError | SupervisionError) -> Iterator[str]:
    """How many ranks may yet fail in the same way: those that still run the endpoint."""
    failed = {(one.actor_class, one.endpoint) for one in error.failures}
    owing: Counter[str] = Counter()
    for call in observe.open_calls():
        if (call.actor_class, call.endpoint) in failed:
            owing[frontend.endpoint_text(call.actor_class, call.endpoint)] += len(call.owing)
    for text, ranks in owing.items():
        yield f"{count(ranks, 'rank has', 'ranks have')} not answered {text} yet\n"


def error_lines(
    error: ActorError | SupervisionError,
    trace: TracebackType | None,
    cell_names: CellNames,
    names: Mapping[str, object],
) -> list[str]:
    """The error in blocks of lines: the failure, its ranks, its place, and its caller.

    `names`: the notebook's variables, for advice.
    """
    blocks: list[str] = []
    for groups in frontend.failures_by_place(error.failures):
        head, *rest = entry_lines(groups, cell_names)
        title = "" if blocks else f"{type(error).__name__}: "
        blocks.append("\n".join([f"{_BOLD}{title}{head}{_PLAIN}", *rest, ""]))
    blocks += _owing_lines(error)
    if not blocks:
        blocks.append(f"{_BOLD}{type(error).__name__}: {_told(error, cell_names)}{_PLAIN}")
    remedy = _remedy(error, names)
    if remedy:
        blocks.append(f"{remedy}\n")
    if not _from_cell(error):
        blocks += _caller_block(trace, cell_names)
    return blocks


def _lines_of_magic(
    kind: type[BaseException],
    error: BaseException,
    magic: str,
    trace: TracebackType | None,
    cell_names: CellNames,
) -> list[str]:
    """An error of a magic: the magic as it was written, not the call that IPython makes of it."""
    said = f"{kind.__name__}: {error}" if str(error) else f"{kind.__name__} in {magic}"
    return [f"{_BOLD}{said}{_PLAIN}", *_caller_block(trace, cell_names)]


def _innermost_magic(trace: TracebackType | None) -> str | None:
    """The magic that the user's innermost frame calls; None if that frame calls none."""
    places = list(_calling_places(trace))
    return places[-1].magic if places else None


def _caller_block(trace: TracebackType | None, cell_names: CellNames) -> list[str]:
    """The user's frames that led to a call; nothing if a magic in a cell has made it."""
    caller = [place for place in _calling_places(trace) if place.magic is None]
    caller = [place for place in caller if place.library is None] or caller
    lines = [line for place in caller for line in place_lines(place, cell_names)]
    return ["\n".join(["called from", *(f"  {line}" for line in lines)])] if lines else []


def _told(error: ActorError | SupervisionError, cell_names: CellNames) -> str:
    """The text of an error, with the name of the cell in place of its file, if it names one."""
    text, filename = str(error), getattr(error, "filename", "")
    cell = cell_names(filename) if filename else None
    return text if cell is None else text.replace(filename, cell)


def _remedy(error: ActorError | SupervisionError, names: Mapping[str, object]) -> str:
    """The remedy if an actor or process has ended for good; otherwise empty."""
    if not isinstance(error, SupervisionError) or not error.failures:
        return ""
    if any(one.earlier for one in error.failures if has_ended(one)):
        return error.remedy
    if error.remedy and not error.refusal:
        return error.remedy
    in_script = ": ".join(filter(None, (error.refusal, error.remedy)))
    return advice(error.failures, names, error.refusal) or in_script


def _notebook_name_hints(
    error: ActorError | SupervisionError, names: Container[str]
) -> Iterator[str]:
    """Hints for names of the notebook that a cell on ranks used."""
    found: dict[str, str] = {}  # the ranks, by name of the variable
    for failure in error.failures:
        match = _NO_NAME.match(failure.message)
        if match and failure.exception_type == "NameError" and is_rank_cell(failure):
            found.setdefault(match[1], cell_selection(failure))
    for name, where in found.items():
        if name in names:
            yield (
                f"{name!r} is a variable of the notebook, and ranks have their own; to send it:\n"
                f"%%monarch on {where} --push {name}\n"
            )


def _group_hints(error: ActorError | SupervisionError, names: Container[str]) -> Iterator[str]:
    """A hint for ranks on which code has used a process group before one was made."""
    lacking = [one for one in error.failures if _NO_GROUP in one.message]
    for name in dict.fromkeys(failure.mesh_name for failure in lacking):
        if name in names:
            yield f"this line makes a process group of its ranks:\n{name}.init_process_group()\n"


def cell_names_of(shell: Any) -> CellNames:
    """A function that gives this notebook's name of a cell's file: `Cell In[3]`."""

    def name(filename: str) -> str | None:
        found = shell.compile.format_code_name(filename)
        return " ".join(found) if found else None

    return name


def _from_cell(error: ActorError | SupervisionError) -> bool:
    return bool(error.failures) and all(
        is_rank_cell(failure) or died_in_cell(failure) for failure in error.failures
    )


def _calling_places(trace: TracebackType | None) -> Iterator[ProgramLine]:
    """The user's frames that led to the call, up to where they enter the runtime."""
    for frame in traceback.extract_tb(trace):
        if frame.filename.startswith(RUNTIME):
            return
        place = ProgramLine(frame.filename, frame.lineno or 0, frame.name, frame.line or "")
        if not place.is_own and not frame.filename.startswith(MACHINERY):
            yield place


_OF_NONE = re.compile(
    r"'NoneType' object (has no attribute|can't be awaited)|NoneType can't be (used|awaited)"
)
_BROADCAST = re.compile(r"\.broadcast\(")
_HINT = ".broadcast(...) returns None; .call(...) returns a future of the answers"


@contextmanager
def with_hint(error: BaseException, trace: TracebackType | None) -> Generator[None]:
    """Add a hint to the error's text while it is shown, if the line that raised it broadcasts."""
    said = str(error)
    if not (
        isinstance(error, (AttributeError, TypeError))
        and _OF_NONE.search(said)
        and _BROADCAST.search(_last_line(trace))
    ):
        yield
        return
    args, error.args = error.args, (f"{said}; {_HINT}",)
    try:
        yield
    finally:
        error.args = args


def _last_line(trace: TracebackType | None) -> str:
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)


_MAGICS = {"call detach() to release it": "`%monarch detach` releases it"}


@contextmanager
def with_magics(error: BaseException) -> Generator[None]:
    """Name the magic in place of the function in an error of sessions, while it is shown."""
    args, text = error.args, str(error)
    for said, instead in _MAGICS.items():
        if isinstance(error, SessionError) and said in text:
            error.args = (text.replace(said, instead),)
    try:
        yield
    finally:
        error.args = args
