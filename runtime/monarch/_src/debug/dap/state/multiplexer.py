"""One Debug Adapter Protocol session over the debuggers of many processes. No I/O.

An editor (JupyterLab, VS Code) talks to one adapter, whose debuggee has threads. Each rank has a
debugger that serves one process. The multiplexer numbers all threads, frames, variables, sources
and breakpoints anew. It sends a request about one thread to its rank and other requests to all
ranks, and merges the answers.

Invariants: each request of the editor is answered once, also when ranks end; numbers of a rank
never reach the editor, nor the editor's a rank; threads stop one at a time; no request of the
editor ends a process.

Events are methods; each returns the actions that follow, in order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from monarch._src.wire.dap_codec import Message

GONE = "the thread has resumed, or its process has ended"
# Requests by the argument that identifies their rank.
BY_THREAD = frozenset(
    ("continue", "next", "stepIn", "stepOut", "pause", "stackTrace", "exceptionInfo", "goto")
)
BY_FRAME = frozenset(
    ("scopes", "evaluate", "setExpression", "completions", "stepInTargets", "restartFrame")
)
BY_VARIABLE = frozenset(("variables", "setVariable"))
STEPS = frozenset(("continue", "next", "stepIn", "stepOut", "goto"))
FOR_ALL = frozenset(
    (
        "initialize", "attach", "configurationDone", "disconnect", "threads", "setBreakpoints",
        "setFunctionBreakpoints", "setExceptionBreakpoints", "setDebuggerProperty",
    )
)  # fmt: skip
_BREAKPOINTS = frozenset(("setBreakpoints", "setFunctionBreakpoints"))
# Arguments of `attach` that the editor may set; the multiplexer sets the others.
_ARGUMENTS = ("justMyCode", "pathMappings", "showReturnValue", "variablePresentation")
# Frames of the runtime are neither shown nor stepped into.
_RULES = ({"path": "**/monarch/_src/**", "include": False},)


class ToClient(msgspec.Struct, frozen=True):
    """Send a message to the editor."""

    message: Message


class ToRank(msgspec.Struct, frozen=True):
    """Send a message to the debugger of one rank."""

    at: int
    message: Message


class BreakIn(msgspec.Struct, frozen=True):
    """Stop a running rank at a line of user code."""

    at: int


Action: TypeAlias = ToClient | ToRank | BreakIn


class _Numbers:
    """Maps the numbers that ranks use to numbers unique in the session, and back."""

    def __init__(self) -> None:
        self._next = itertools.count(1)
        self._session_numbers: dict[tuple[int, int], int] = {}
        self._rank_numbers: dict[int, tuple[int, int]] = {}

    def session_number(self, at: int, rank_number: int) -> int:
        """The session's number for number `rank_number` of rank `at`."""
        known = self._session_numbers.get((at, rank_number))
        if known is None:
            known = self._session_numbers[at, rank_number] = next(self._next)
            self._rank_numbers[known] = at, rank_number
        return known

    def rank_number(self, session_number: object) -> tuple[int, int] | None:
        """The rank and its number; None if the session's number is unknown."""
        return self._rank_numbers.get(session_number) if isinstance(session_number, int) else None

    def alias(self, at: int, rank_number: int, session_number: int) -> None:
        """Map one more number of a rank to the session's number `session_number`."""
        self._session_numbers[at, rank_number] = session_number
        self._rank_numbers.setdefault(session_number, (at, rank_number))

    def fresh(self) -> int:
        """A new session number."""
        return next(self._next)

    def of(self, at: int) -> list[int]:
        """The session's numbers for that rank."""
        return [
            session_number
            for (rank, _), session_number in self._session_numbers.items()
            if rank == at
        ]

    def forget(self, at: int) -> None:
        """Drop the numbers of that rank."""
        for key in [key for key in self._session_numbers if key[0] == at]:
            self._rank_numbers.pop(self._session_numbers.pop(key), None)


class _PendingRequest(msgspec.Struct):
    """A pending request of the editor. `single`: one rank answers, so nothing is merged."""

    request: Message
    waiting_for: set[int]
    single: bool
    answers: dict[int, Message] = msgspec.field(default_factory=dict[int, Message])


class Multiplexer:
    """One session. `names`: of the ranks, which are numbered by their index."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.living = set(range(len(self.names)))
        self._threads, self._frames = _Numbers(), _Numbers()
        self._variables, self._sources, self._breakpoints = _Numbers(), _Numbers(), _Numbers()
        self._stopped: dict[int, set[int]] = {at: set() for at in self.living}  # threads, by rank
        self._last = 0  # the rank that stopped last
        self._editor_seq = itertools.count(1)  # messages to the editor
        self._rank_seq = itertools.count(1)  # requests to ranks
        self._pending: dict[tuple[int, int], _PendingRequest] = {}  # by rank and request number
        self._uninitialized = set(self.living)
        self.ended = False

    @property
    def stopped(self) -> list[int]:
        """The stopped threads, by the session's numbers."""
        found = [
            self._threads.session_number(at, one)
            for at in sorted(self._stopped)
            for one in self._stopped[at]
        ]
        return sorted(found)

    # --- from the editor --------------------------------------------------------------------------

    def on_request(self, request: Message) -> list[Action]:
        """Handle a request of the editor."""
        if request.get("type") != "request":
            return []  # the adapter sends the editor no requests
        command = str(request.get("command"))
        if command in ("launch", "terminate"):  # ranks run already, and keep running
            command = {"launch": "attach", "terminate": "disconnect"}[command]
        if command in FOR_ALL:
            return self._ask_all(request, command)
        if command == "pause":
            return self._pause(request)
        arguments, at = self._routed(command, dict(_arguments(request)))
        if at is None or at not in self.living:
            return [self._refuse(request, GONE)]
        if command in STEPS:
            arguments["singleThread"] = True
            self._on_thread_resumed(at, arguments["threadId"])
        return self._ask(request, command, {at: arguments}, single=True)

    def _ask_all(self, request: Message, command: str) -> list[Action]:
        given = _arguments(request)
        arguments: Message = dict(given)
        if command == "attach":
            arguments = {
                "justMyCode": True, "rules": list(_RULES), "stopAllThreadsOnSuspend": False,
                "steppingResumesAllThreads": False, "redirectOutput": False, "subProcess": False,
                "terminateChildProcesses": False,
                **{name: given[name] for name in _ARGUMENTS if name in given},
            }  # fmt: skip
        elif command == "disconnect":
            arguments = {"terminateDebuggee": False}
        if not self.living:
            return [self._answer(request, {})]
        return self._ask(request, command, dict.fromkeys(self.living, arguments), single=False)

    def _ask(
        self, request: Message, command: str, arguments: dict[int, Message], *, single: bool
    ) -> list[Action]:
        pending = _PendingRequest(request, set(arguments), single)
        actions: list[Action] = []
        for at, given in sorted(arguments.items()):
            number = next(self._rank_seq)
            self._pending[at, number] = pending
            message = {"seq": number, "type": "request", "command": command, "arguments": given}
            actions.append(ToRank(at, message))
        return actions

    def _pause(self, request: Message) -> list[Action]:
        found = self._threads.rank_number(_arguments(request).get("threadId"))
        if found is None or found[0] not in self.living:
            return [self._refuse(request, GONE)]
        return [BreakIn(found[0]), self._answer(request, {})]

    def _routed(self, command: str, arguments: Message) -> tuple[Message, int | None]:
        """The arguments with the rank's own numbers, and the rank (None: unknown)."""
        if command in BY_THREAD:
            return _with(arguments, "threadId", self._threads)
        if command in BY_VARIABLE:
            return _with(arguments, "variablesReference", self._variables)
        if command in BY_FRAME and "frameId" in arguments:
            return _with(arguments, "frameId", self._frames)
        source: Any = arguments.get("source")
        number: Any = arguments.get("sourceReference") or (
            cast(Message, source).get("sourceReference") if isinstance(source, dict) else None
        )
        if command == "source" and number:
            found = self._sources.rank_number(number)
            if found is None:
                return arguments, None
            inner = {**cast(Message, source or {}), "sourceReference": found[1]}
            return {**arguments, "sourceReference": found[1], "source": inner}, found[0]
        first = min(self.living, default=None)
        return arguments, self._last if self._last in self.living else first

    # --- from ranks -------------------------------------------------------------------------------

    def on_rank_message(self, at: int, message: Message) -> list[Action]:
        """Handle a message of the debugger of a rank."""
        if at not in self.living:
            return []
        if message.get("type") == "response":
            pending = self._pending.pop((at, int(message.get("request_seq", 0))), None)
            return [] if pending is None else self._on_response(pending, at, message)
        if message.get("type") == "event":
            return self._on_event(at, str(message.get("event")), _body(message))
        return []

    def note(self, text: str) -> list[Action]:
        """Show a note to the user of the editor."""
        return [self._event("output", {"category": "important", "output": f"{text}\n"})]

    def on_rank_gone(self, at: int, why: str) -> list[Action]:
        """The debugger of a rank has ended: answer for it and report its threads as ended."""
        if at not in self.living:
            return []
        self.living.discard(at)
        actions: list[Action] = []
        for key, pending in list(self._pending.items()):
            if key[0] == at:
                del self._pending[key]
                failed = {"success": False, "message": f"{self.names[at]}: {why}"}
                actions += self._on_response(pending, at, failed)
        for rank_number in sorted(self._stopped[at]):
            actions.append(self._continued(self._threads.session_number(at, rank_number)))
        self._stopped[at].clear()
        for session_number in self._threads.of(at):
            actions.append(self._event("thread", {"reason": "exited", "threadId": session_number}))
        actions += self.note(f"{self.names[at]}: {why}")
        for numbers in (self._threads, self._frames, self._variables, self._sources):
            numbers.forget(at)
        return actions + self._initialized(at) + self._terminated()

    def _on_response(self, pending: _PendingRequest, at: int, answer: Message) -> list[Action]:
        pending.waiting_for.discard(at)
        pending.answers[at] = answer
        if pending.waiting_for:
            return []
        request = pending.request
        if pending.single:
            if not answer.get("success"):
                return [self._refuse(request, str(answer.get("message") or GONE), answer)]
            return [self._answer(request, self._translated(at, _body(answer)))]
        succeeded = {
            rank: one for rank, one in sorted(pending.answers.items()) if one.get("success")
        }
        if not succeeded and request.get("command") not in ("disconnect", "terminate"):
            return [self._refuse(request, str(answer.get("message") or GONE), answer)]
        return [self._answer(request, self._merged(str(request["command"]), succeeded))]

    def _merged(self, command: str, answers: dict[int, Message]) -> Message:
        bodies = {at: _body(one) for at, one in answers.items()}
        if command == "threads":
            return {
                "threads": [
                    {
                        "id": self._threads.session_number(at, one["id"]),
                        "name": self._thread_name(at, str(one["name"])),
                    }
                    for at, body in bodies.items()
                    for one in body.get("threads", [])
                ]
            }
        if command in _BREAKPOINTS:
            each = [
                [(at, one) for one in body.get("breakpoints", [])] for at, body in bodies.items()
            ]
            return {"breakpoints": [self._breakpoint(same) for same in zip(*each, strict=False)]}
        first: Message = dict(*list(bodies.values())[:1])
        if command == "initialize":
            first.update(
                supportTerminateDebuggee=False, supportsTerminateRequest=False,
                supportsRestartRequest=False, supportsSingleThreadExecutionRequests=True,
                supportsGotoTargetsRequest=False,
            )  # fmt: skip
        return first

    def _breakpoint(self, same: Iterable[tuple[int, Message]]) -> Message:
        """Merge the same breakpoint of several ranks; prefer one that is verified."""
        found = list(same)
        shown = dict(next((one for _, one in found if one.get("verified")), found[0][1]))
        if "id" in shown:
            shown["id"] = self._breakpoints.fresh()
            for at, one in found:
                self._breakpoints.alias(at, one["id"], shown["id"])
        return shown

    def _on_event(self, at: int, event: str, body: Message) -> list[Action]:
        if event == "stopped":
            self._stopped[at].add(body["threadId"])
            self._last = at
            session_number = self._threads.session_number(at, body["threadId"])
            body = {**body, "threadId": session_number, "allThreadsStopped": False}
            return [self._event("stopped", _without(body, "hitBreakpointIds"))]
        if event == "continued":
            rank_number = body.get("threadId")
            which = list(self._stopped[at]) if body.get("allThreadsContinued") else [rank_number]
            actions: list[Action] = []
            for one in which:
                if isinstance(one, int):
                    self._on_thread_resumed(at, one)
                    actions.append(self._continued(self._threads.session_number(at, one)))
            return actions
        if event == "thread":
            session_number = self._threads.session_number(at, body["threadId"])
            self._stopped[at].discard(body["threadId"])
            return [self._event("thread", {**body, "threadId": session_number})]
        if event == "breakpoint":
            one = dict(body.get("breakpoint") or {})
            session_number_or_none = (
                self._breakpoints.session_number(at, one["id"]) if "id" in one else None
            )
            if session_number_or_none is None or not (one.get("verified") or len(self.living) == 1):
                return []
            return [
                self._event(
                    "breakpoint", {**body, "breakpoint": {**one, "id": session_number_or_none}}
                )
            ]
        if event == "output" and body.get("category") != "telemetry":
            return [self._event("output", self._translated(at, body))]
        if event == "initialized":
            return self._initialized(at)
        return []  # events about processes and modules differ from rank to rank

    def _initialized(self, at: int) -> list[Action]:
        if at not in self._uninitialized:
            return []
        self._uninitialized.discard(at)
        return [] if self._uninitialized else [self._event("initialized", {})]

    def _terminated(self) -> list[Action]:
        if self.living or self.ended:
            return []
        self.ended = True
        return [self._event("terminated", {})]

    def _on_thread_resumed(self, at: int, rank_number: int) -> None:
        """A thread resumes, so its frames and variables are no longer valid."""
        self._stopped[at].discard(rank_number)
        if not self._stopped[at]:
            self._frames.forget(at)
            self._variables.forget(at)

    def _continued(self, session_number: int) -> ToClient:
        return self._event("continued", {"threadId": session_number, "allThreadsContinued": False})

    def _thread_name(self, at: int, name: str) -> str:
        return self.names[at] if name == "MainThread" else f"{self.names[at]}: {name}"

    def _translated(self, at: int, value: Any) -> Any:
        """Replace the rank's numbers in `value` by the session's."""
        if isinstance(value, list):
            return [self._translated(at, one) for one in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        found: Message = {}
        for name, one in cast(Message, value).items():
            numbers = self._numbers_of(name)
            if numbers is not None and isinstance(one, int):
                found[name] = numbers.session_number(at, one) if one > 0 else one
            elif name == "stackFrames" and isinstance(one, list):
                frames = cast("list[Message]", one)
                while len(frames) > 1 and _is_start(frames[-1]):
                    frames = frames[:-1]
                found[name] = [
                    {
                        **self._translated(at, frame),
                        "id": self._frames.session_number(at, frame["id"]),
                    }
                    for frame in frames
                ]
            else:
                found[name] = self._translated(at, one)
        return found

    def _numbers_of(self, name: str) -> _Numbers | None:
        return {
            "variablesReference": self._variables,
            "sourceReference": self._sources,
            "threadId": self._threads,
            "frameId": self._frames,
        }.get(name)

    # --- messages to the editor -------------------------------------------------------------------

    def _event(self, event: str, body: Message) -> ToClient:
        message = {"seq": next(self._editor_seq), "type": "event", "event": event, "body": body}
        return ToClient(message)

    def _answer(self, request: Message, body: Message) -> ToClient:
        return ToClient(answer(request, next(self._editor_seq), body))

    def _refuse(self, request: Message, why: str, answered: Message | None = None) -> ToClient:
        body = {} if answered is None else _body(answered)
        return ToClient(
            {**answer(request, next(self._editor_seq), body), "success": False, "message": why}
        )

    def validate(self) -> None:
        """Assert the invariants."""
        for (at, _), pending in self._pending.items():
            assert at in self.living
            assert at in pending.waiting_for
        assert not self.ended or not self.living
        assert all(at in self.living or not self._stopped[at] for at in self._stopped)


def answer(request: Message, seq: int, body: Message) -> Message:
    """The response to a request that succeeded."""
    return {
        "seq": seq, "type": "response", "request_seq": request.get("seq", 0), "success": True,
        "command": request.get("command", ""), "body": body,
    }  # fmt: skip


def _arguments(request: Message) -> Message:
    found: Any = request.get("arguments")
    return cast(Message, found) if isinstance(found, dict) else {}


def _body(message: Message) -> Message:
    found: Any = message.get("body")
    return cast(Message, found) if isinstance(found, dict) else {}


def _is_start(frame: Message) -> bool:
    """Whether the frame is the `-c` code that starts a process of the runtime."""
    source: Any = frame.get("source")
    path = cast(Message, source).get("path") if isinstance(source, dict) else None
    return frame.get("name") == "<module>" and str(path).endswith("<string>")


def _with(arguments: Message, name: str, numbers: _Numbers) -> tuple[Message, int | None]:
    found = numbers.rank_number(arguments.get(name))
    return (arguments, None) if found is None else ({**arguments, name: found[1]}, found[0])


def _without(body: Message, name: str) -> Message:
    return {key: value for key, value in body.items() if key != name}
