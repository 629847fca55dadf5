"""Python's pdb, controlled by a remote console.

Runs in: a proc, on the debugged thread; loaded on its first breakpoint.
Invariants: a thread is traced only from a `step` (or the like) to the next `continue`, or while
breakpoints set from the console are left. It never stops in frames of the runtime, and tracing ends
with the outermost user frame.

`breakpoint()` stops at its own line on every version of Python: tracing starts only with the first
step. pdb swallows interrupts at its prompt and in commands; here they end the pause, as the
cancellation of a call requires.
"""

from __future__ import annotations

import bdb
import code
import inspect
import io
import pdb
import re
import rlcompleter
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any, Protocol

from monarch._src.debug.rank.user_frames import (
    Source,
    bottom_of,
    is_runtime,
    is_users,
    source_of,
    suspends,
)

MAX_OUTPUT = 1 << 18  # characters that one command may write
_WORD = re.compile(r"[\w.]*\Z")
SKIP = ["monarch._src.*", "monarch_jupyter.*", "asyncio.*", "threading"]


class EditorTookOver(BaseException):
    """Leaves the prompt: an editor takes this thread over."""


class ConsoleChannel(Protocol):
    """The debugger's connection to its console; see `debug.rank.pauses`."""

    def on_stopped(self, frame: FrameType, line: int, why: str, debugger: RankPdb) -> None:
        """The thread has stopped at `frame`; commands are read next."""
        ...

    def next_line(self, text: str, prompt: str) -> str | None:
        """Send output and prompt to the console; return its next line.

        Returns None if an editor takes this thread over.

        Raises:
            BaseException: the exception that ends the pause, if its call, actor or process ends.
        """
        ...

    def hand_over(
        self, at: tuple[FrameType, int], error: BaseException | None, on_waiting: Callable[[], None]
    ) -> bool:
        """Stop at `at` in the editor's debugger until that resumes the thread.

        `on_waiting` is called just before the thread waits there. Returns False if no editor is
        connected any more.
        """
        ...

    def on_running(self, text: str, *, steps: bool) -> None:
        """The thread runs and may stop again; with `steps`, soon."""
        ...

    def on_ended(self, text: str) -> None:
        """The session has ended, and the thread runs. Idempotent."""
        ...


class _Screen(io.TextIOBase):
    """The standard input and output of pdb. Excludes output of other threads."""

    def __init__(self, channel: ConsoleChannel, prompt: Callable[[], str]) -> None:
        self._channel = channel
        self._prompt = prompt
        self._thread = threading.get_ident()
        self._written: list[str] = []
        self._size = 0
        self._left_out = 0

    def write(self, text: str, /) -> int:
        if threading.get_ident() != self._thread:
            return (sys.__stdout__ or io.StringIO()).write(text)
        room = MAX_OUTPUT - self._size
        if len(text) > room:
            self._left_out += len(text) - room
        self._written.append(text[:room])
        self._size += len(self._written[-1])
        return len(text)

    def flush(self) -> None:
        """Do nothing: output is sent with the next prompt."""

    def take_output(self) -> str:
        """Return and clear the output written since the last call."""
        text = "".join(self._written)
        if self._left_out:
            text += f"\n... {self._left_out:,} characters are left out ...\n"
        self._written.clear()
        self._size = self._left_out = 0
        return text

    def readline(self, size: int | None = -1, /) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        prompt = self._prompt()
        text = self.take_output()
        line = self._channel.next_line(text.removesuffix(prompt), prompt)
        if line is None:
            raise EditorTookOver
        return f"{line}\n"


class RankPdb(pdb.Pdb):
    """The pdb of one thread."""

    def __init__(self, channel: ConsoleChannel) -> None:
        self._screen = _Screen(channel, lambda: self._current_prompt)
        self._current_prompt = "(Pdb) "
        screen: Any = self._screen  # has the methods of a file that pdb uses
        super().__init__(stdin=screen, stdout=screen, nosigint=True, readrc=False, skip=SKIP)
        self.prompt = "(Pdb) "
        self.channel = channel
        self._open = False
        self._given_away = False  # whether the current trace event gave the thread to the editor
        self._why = ""
        self._inspected_error: BaseException | None = None

    # --- stopping ---------------------------------------------------------------------------------

    def stop_at(self, frame: FrameType, why: str, header: str = "") -> None:
        """Stop at `frame`; afterwards trace the thread if the last command needs it."""
        sys.settrace(None)  # the debugger must not trace itself
        self.reset()
        self.botframe = bottom_of(frame)
        self._why = why
        if header:
            self._screen.write(f"{header}\n")
        self.interaction(frame, None)
        if self._needs_tracing():
            self._trace(frame)

    def inspect_error(self, error: BaseException) -> None:
        """Stop with the frames of an exception, which can be inspected but not resumed."""
        sys.settrace(None)
        self.reset()
        self._why = f"{type(error).__name__}: {error}"[:200]
        self._screen.write(f"{self._why}\n")
        self.botframe = None
        self._inspected_error = error
        try:
            self.interaction(None, error.__traceback__)
        finally:
            self._inspected_error = None

    def arm(self, frame: FrameType, why: str) -> None:
        """Stop at the next line of `frame`. On its thread."""
        self.reset()
        self._why = why
        self.botframe = bottom_of(frame)
        self.set_next(frame)
        self._trace(frame)

    @property
    def is_armed(self) -> bool:
        """Whether breakpoints set from a console are left."""
        return bool(self.breaks)

    def _needs_tracing(self) -> bool:
        """Whether the thread must be traced after the last command."""
        return self._is_stepping() or self.is_armed

    def _is_stepping(self) -> bool:
        """Whether the last command was a step and not `continue`."""
        return not (self.stopframe is self.botframe and self.stoplineno == -1)

    def _trace(self, frame: FrameType) -> None:
        walked: FrameType | None = frame
        while walked is not None:
            walked.f_trace = self.trace_dispatch
            if walked is self.botframe:
                break
            walked = walked.f_back
        sys.settrace(self.trace_dispatch)

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        """As in pdb, with the console as its terminal."""
        is_post_mortem = traceback is not None
        known = self.botframe is not None and frame is not None and _reaches(frame, self.botframe)
        if not self._open and frame is not None and not known:
            self.botframe = bottom_of(frame)
            if sys.gettrace() is not None:
                self._trace(frame)
        why, self._why = self._why or ("step" if self._open else "break"), ""
        self._open = True
        at = _last_users(traceback) if frame is None else (frame, frame.f_lineno)
        try:
            while True:
                self.channel.on_stopped(*at, why, self)
                try:
                    super().interaction(frame, traceback)  # pyright: ignore[reportArgumentType]
                    break
                except EditorTookOver:
                    error = self._inspected_error if is_post_mortem else None
                    if self.channel.hand_over(at, error, self._give_away):
                        return
            if self.quitting and not is_post_mortem:
                raise bdb.BdbQuit("the debugger was told to quit")
        except BaseException:
            self._end_session()
            raise
        if is_post_mortem or not self._needs_tracing():
            self._end_session()
        else:
            self.channel.on_running(self._screen.take_output(), steps=self._is_stepping())

    def _give_away(self) -> None:
        """Give the thread to the editor: stop tracing it."""
        self._given_away = True
        self.clear_all_breaks()
        self.set_continue()
        self._screen.write("*debugged in an editor from now on*\n")
        self._end_session()

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """As in bdb; a frame whose thread the editor took over keeps the editor's tracer."""
        self._given_away = False
        tracer = super().trace_dispatch(frame, event, arg)
        return None if self._given_away else tracer

    def _end_session(self) -> None:
        """End the session."""
        self._open = False
        if not self.is_armed:
            sys.settrace(None)
        self.channel.on_ended(self._screen.take_output())

    def stop_here(self, frame: FrameType) -> bool:
        """As in bdb, but not in code that the runtime has called."""
        if not super().stop_here(frame):
            return False
        walked: FrameType | None = frame
        while walked is not None and walked is not self.botframe:
            if is_runtime(walked):
                return False
            walked = walked.f_back
        return True

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        """As in bdb; the session ends with the outermost user frame."""
        try:
            return super().dispatch_return(frame, arg)
        finally:
            if frame is self.botframe and not suspends(frame):
                # As after `continue`.
                self.stopframe, self.returnframe, self.stoplineno = frame, None, -1
                if self._open or not (self.is_armed or self._given_away):
                    self._end_session()

    # --- commands and hooks that differ from pdb --------------------------------------------------

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        """As in bdb, without the frames around the user's."""
        stack, at = super().get_stack(f, t)
        if t is not None:
            begin = next((i for i, (one, _) in enumerate(stack) if one is t.tb_frame), 0)
        else:
            bottom = bottom_of(stack[at][0])
            begin = next((i for i, (one, _) in enumerate(stack) if one is bottom), 0)
        users = [i for i in range(begin, len(stack)) if is_users(stack[i][0])]
        if not users:
            return stack, at
        stack = stack[users[0] : users[-1] + 1]
        return stack, len(stack) - 1 if t is not None else max(0, at - users[0])

    def postcmd(self, stop: bool, line: str) -> bool:
        """As in cmd; also write variables that the command changed back to the frame."""
        if _write_back is not None and self.curframe is not None:
            _write_back(self.curframe, self.curframe_locals)
        return super().postcmd(stop, line)

    def _cmdloop(self) -> None:
        self._current_prompt = self.prompt
        self.cmdloop()

    def do_commands(self, arg: str) -> bool | None:
        """As in pdb; the prompt is `(com) ` meanwhile."""
        before, self._current_prompt = self._current_prompt, "(com) "
        try:
            return super().do_commands(arg)
        finally:
            self._current_prompt = before

    def do_quit(self, arg: str) -> bool | None:
        """q(uit) | exit
        End the call that is debugged: bdb.BdbQuit is raised in it.
        """
        self.set_quit()
        return True

    do_q = do_quit
    do_exit = do_quit
    do_EOF = do_quit

    def do_run(self, arg: str) -> bool | None:
        """run | restart
        There is nothing to run again on a rank.
        """
        self.error("a rank cannot be run again from here; call its endpoint again")
        return None

    do_restart = do_run

    def do_clear_all(self, arg: str) -> bool | None:
        """clear_all
        Clear all breakpoints of this thread that were set from a console, without the confirmation
        that `clear` asks for.
        """
        self.clear_all_breaks()
        return None

    def do_interact(self, arg: str) -> bool | None:
        """interact
        A Python prompt with the names of this frame, until `exit()` or an empty end of input.
        """
        frame = self.curframe
        assert frame is not None
        names = {**frame.f_globals, **self.curframe_locals}
        prompt = _Prompt(names, self)
        before = self._current_prompt
        written, sys.stdout = sys.stdout, self._screen
        try:
            prompt.interact("*interactive*; exit() goes back to pdb", "*back in pdb*")
        except SystemExit:
            self.message("*back in pdb*")
        finally:
            sys.stdout, self._current_prompt = written, before
        return None

    def ask(self, prompt: str) -> str:
        """Read one line from the console."""
        self._current_prompt = prompt
        self._screen.write(prompt)
        return self._screen.readline().removesuffix("\n")

    # --- queries ----------------------------------------------------------------------------------

    def source_here(self) -> Source | None:
        """The source lines around the console's current line."""
        stack: list[tuple[FrameType, int]] = self.stack
        if not stack:
            return None
        return source_of(*stack[self.curindex])

    def completions(self, line: str) -> list[str]:
        """Completions of the last word of a line: commands, names, attributes."""
        match = _WORD.search(line)
        word = "" if match is None else match[0]
        found: list[str] = []
        if line == word and "." not in word:
            found += [name[3:] for name in self.get_names() if name.startswith(f"do_{word}")]
        frame = self.curframe
        if frame is not None:
            names = {**frame.f_globals, **self.curframe_locals}
            completer = rlcompleter.Completer(names)
            matches = completer.attr_matches if "." in word else completer.global_matches
            found += [] if not word else [name.rstrip("() ") for name in matches(word)]
        return sorted(set(found))[:200]


class _Prompt(code.InteractiveConsole):
    """The prompt of `interact`, on the console."""

    def __init__(self, names: dict[str, Any], debugger: RankPdb) -> None:
        super().__init__(names)
        self._debugger = debugger

    def raw_input(self, prompt: str = "") -> str:
        """Read a line; `EOF` ends the prompt."""
        line = self._debugger.ask(prompt)
        if line == "EOF":
            raise EOFError
        return line

    def write(self, data: str) -> None:
        """Write a traceback or a syntax error."""
        self._debugger.stdout.write(data)


def _writer() -> Callable[[FrameType, Mapping[str, Any]], None] | None:
    """A function that writes changed variables back to a frame; None if Python does so itself.

    Before Python 3.13, `f_locals` is a copy, and each access to it discards earlier changes.
    """
    if sys.version_info >= (3, 13):
        return None
    import ctypes

    to_fast = ctypes.pythonapi.PyFrame_LocalsToFast

    def write(frame: FrameType, changed: Mapping[str, Any]) -> None:
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return  # in a module, these are the variables themselves
        kept = dict(changed)
        frame.f_locals.update(kept)
        to_fast(ctypes.py_object(frame), ctypes.c_int(0))

    return write


_write_back = _writer()


def _reaches(frame: FrameType, bottom: FrameType) -> bool:
    walked: FrameType | None = frame
    while walked is not None:
        if walked is bottom:
            return True
        walked = walked.f_back
    return False


def _last_users(traceback_or_error: Any) -> tuple[FrameType, int]:
    traceback = getattr(traceback_or_error, "__traceback__", traceback_or_error)
    found = traceback.tb_frame, traceback.tb_lineno
    while traceback is not None:
        if is_users(traceback.tb_frame):
            found = traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
    return found
