"""`monarch debug`: debug a session's ranks from a terminal, even while its client is busy.

Ctrl-C at a prompt is handled even if it arrives just before CPython begins to wait for a key.
CPython's signal handler only sets a flag. Running Python code checks the flag, and so does a system
call that the signal interrupts. A signal between the last check and the start of the read
interrupts nothing, so the prompt would wait for a key with the flag set.

A terminal discards typed keys at Ctrl-C. If readline has just seen that there is a key, it then
waits for one in a loop that checks no flag. So the terminal keeps them in this context (`NOFLSH`);
the line that they belong to is discarded anyway.

Runs in: the command line. A thread reads each Ctrl-C from the wake-up descriptor and interrupts the
main thread's read with SIGURG, several times.
Invariants: the handler of SIGURG does nothing; the earlier handlers and the earlier mode of the
terminal are restored at the end.
"""

from __future__ import annotations

import re
import signal
import socket
import sys
import termios
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType

from monarch._src.debug.commands import Console, DebugCommands, Replies
from monarch._src.debug.listing import WaitingRank
from monarch._src.debug.rank_selection import HOW, Selection, parse_ranks
from monarch._src.debug.terminal_connection import TerminalConnection, choose_session
from monarch._src.errors import DebugError
from monarch._src.session.directories import AGENT_LIVES, Session, find_sessions, short_name

PROMPT = "monarch debug> "
HELP = f"""\
list                          list paused ranks and where they stand
attach ACTOR RANK             debug one rank with pdb commands; `detach` leaves it paused
cast ACTOR ranks(...) CMD     send one command to several ranks; equal answers are shown once
continue [ACTOR [ranks(...)]] resume ranks and clear the breakpoints set from consoles
post-mortem on|off            pause an endpoint where it raises, with its frames
help, quit
ACTOR is the name of a mesh of actors or of processes; for ranks, {HOW}."""
_TARGET = re.compile(
    r"(?P<name>\S+)\s*(?P<ranks>ranks\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*(?P<rest>.*)"
)


def run(bases: Sequence[str] | None, which: str, lines: Sequence[str] | None) -> int:
    """Run `lines`, or commands read from standard input; return 1 if a command failed."""
    live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]
    try:
        session = _session_to_debug(live, which)
        connection = TerminalConnection(session)
    except DebugError as error:
        print(f"monarch debug: {error}", file=sys.stderr)
        return 1
    try:
        prompt = _Prompt(DebugCommands(connection))
        with prompt_interrupts():
            if lines is not None:
                done = [prompt.run_line(text) for text in lines]
                return 0 if all(done) else 1
            return prompt.run_stdin(session)
    finally:
        connection.close()


def _session_to_debug(live: Sequence[Session], which: str) -> Session:
    """The session that `which` names; if it is empty, the only one with ranks to debug."""
    if not which and len(live) > 1:
        waiting = [one for one in live if _waits(one)]
        if len(waiting) == 1:
            return waiting[0]
        if waiting:
            names = ", ".join(short_name(one) for one in waiting)
            raise DebugError(f"ranks wait in several sessions; name one: {names}")
    return choose_session(live, which)


def _waits(session: Session) -> bool:
    """Whether ranks of that session wait for a debugger. One that does not answer has none."""
    try:
        connection = TerminalConnection(session)
    except DebugError:
        return False
    try:
        return len(DebugCommands(connection).waiting()) > 0
    except (DebugError, TimeoutError):
        return False
    finally:
        connection.close()


class _Prompt:
    """Runs the commands of the debugger prompt."""

    def __init__(self, debugger: DebugCommands) -> None:
        self._debugger = debugger
        self._commands: dict[str, Callable[[str], None]] = {
            "list": self._list, "l": self._list, "attach": self._attach, "cast": self._cast,
            "continue": self._continue, "c": self._continue, "post-mortem": self._post_mortem,
            "help": self._help,
        }  # fmt: skip

    def run_stdin(self, session: Session) -> int:
        """Run commands from standard input until it ends or the user quits."""
        with suppress(ImportError):
            import_module("readline")  # line editing and history
        print(f"{session.label}; `help` lists commands")
        self.run_line("list")
        succeeded = True
        while True:
            try:
                text = input(PROMPT)
            except EOFError:
                print()
                return 0 if succeeded else 1
            except KeyboardInterrupt:
                print()
                continue
            if text.strip() in ("quit", "q", "exit"):
                return 0
            succeeded = self.run_line(text) and succeeded

    def run_line(self, text: str) -> bool:
        """Run one command; return whether it succeeded."""
        name, _, rest = text.strip().partition(" ")
        if not name:
            return True
        command = self._commands.get(name)
        try:
            if command is None:
                raise DebugError(f"unknown command {name!r}; `help` lists the commands")
            command(rest.strip())
        except (DebugError, TimeoutError) as error:
            print(f"monarch debug: {error}", file=sys.stderr)
            return False
        except KeyboardInterrupt:
            print("stopped waiting; the command continues on the rank")
        return True

    def _list(self, _rest: str) -> None:
        print(self._debugger.waiting())

    def _help(self, _rest: str) -> None:
        print(HELP)

    def _attach(self, rest: str) -> None:
        found = self._paused(_selection(rest))
        if len(found) != 1:
            known = ", ".join(one.name for one in found[:4])
            raise DebugError(
                f"{len(found)} ranks are paused there ({known}); name one rank"
                if found
                else f"no rank of {rest} is paused; `list` shows paused ranks"
            )
        with self._debugger.attach(found[0]) as console:
            print(console.send("where"), end="")
            _talk(console)

    def _cast(self, rest: str) -> None:
        selection, command = _target(rest)
        if not command:
            raise DebugError("cast needs a command, as in: cast trainers ranks(0:4) p self.loss")
        print(self._debugger.cast(self._paused_or_error(selection), command))

    def _continue(self, rest: str) -> None:
        found = self._paused_or_error(_selection(rest)) if rest else self._paused(Selection())
        replies = self._debugger.resume(found)
        refused = Replies(reply for reply in replies if reply.problem)
        resumed = len(replies) - len(refused)
        print(f"resumed {resumed} rank{'' if resumed == 1 else 's'}")
        if refused:
            raise DebugError(f"these ranks were not resumed:\n{refused}")

    def _post_mortem(self, rest: str) -> None:
        if rest not in ("on", "off"):
            raise DebugError("write `post-mortem on` or `post-mortem off`")
        self._debugger.keep_failures(rest == "on")

    def _paused(self, selection: Selection) -> list[WaitingRank]:
        found = self._debugger.waiting()
        return [one for one in found if one.state == "paused" and one.is_in(selection)]

    def _paused_or_error(self, selection: Selection) -> list[WaitingRank]:
        found = self._paused(selection)
        if not found:
            raise DebugError(f"no rank of {selection} is paused; `list` shows paused ranks")
        return found


def _selection(text: str) -> Selection:
    """Parse `trainers`, `trainers 3` or `trainers ranks(0:4)`."""
    name, _, ranks = text.partition(" ")
    return parse_ranks(ranks, name)


def _target(text: str) -> tuple[Selection, str]:
    """Split `trainers ranks(0:4) p x` into the selection and the command."""
    match = _TARGET.match(text)
    if match is None:
        raise DebugError("name a mesh of actors, as in: cast trainers ranks(0:4) p self.loss")
    return parse_ranks(match["ranks"] or "", match["name"]), match["rest"]


def _talk(console: Console) -> None:
    while not console.is_over:
        try:
            text = input(console.prompt)
        except EOFError:
            break
        except KeyboardInterrupt:  # as in a shell: discard the line
            print()
            continue
        if text.strip() == "detach":
            break
        try:
            print(console.send(text), end="")
        except KeyboardInterrupt:
            print("stopped waiting; the command continues on the rank")
            break
    print(f"{console.rank.name} {'has resumed' if console.is_over else 'stays paused'}")


WAKE_SIGNAL = signal.SIGURG  # ignored by default
FIRST_S = 0.02
# Repeated, each after twice the time: a busy machine may delay the main thread before its read.
WAKE_UPS = 7


@contextmanager
def prompt_interrupts() -> Generator[None]:
    """Raise KeyboardInterrupt for each Ctrl-C in this context. Main thread only, not nested."""
    main = threading.main_thread().ident
    assert main is not None
    reads, writes = socket.socketpair()
    writes.setblocking(False)
    over = threading.Event()

    def wake_main() -> None:
        while numbers := reads.recv(64):
            if signal.SIGINT not in numbers:
                continue  # WAKE_SIGNAL itself
            for number in range(WAKE_UPS):
                if over.wait(FIRST_S * 2**number):
                    return
                signal.pthread_kill(main, WAKE_SIGNAL)

    thread = threading.Thread(target=wake_main, name="interrupts", daemon=True)
    old_handler = signal.signal(WAKE_SIGNAL, _ignore)
    old_fd = signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        with _keys_kept_at_interrupts():
            yield
    finally:
        over.set()
        signal.set_wakeup_fd(old_fd)
        writes.close()
        thread.join()
        reads.close()
        signal.signal(WAKE_SIGNAL, old_handler)


@contextmanager
def _keys_kept_at_interrupts() -> Generator[None]:
    """Set `NOFLSH` of the terminal that is standard input, if it is one."""
    if not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    kept = list(before)
    kept[3] |= termios.NOFLSH  # the local modes
    termios.tcsetattr(fd, termios.TCSANOW, kept)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is closed
            termios.tcsetattr(fd, termios.TCSANOW, before)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Only interrupt the system call, so that CPython checks for signals."""
