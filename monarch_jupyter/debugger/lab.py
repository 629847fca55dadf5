"""JupyterLab's debugger on ranks: the kernel forwards the debugger's requests to them.

Runs in: the kernel. `start` and `stop` block, on any thread but that of the control channel; all
else runs on that thread's loop, where ipykernel answers debug requests of the page. Owns: the
bridge to the ranks; the place of ipykernel's debugger in front of the page. Invariants: ipykernel's
own debugger starts and stops with the page's, as usual, and has no breakpoints while ranks are
debugged; afterwards it has the page's breakpoints again; each request of the page gets one answer,
and a request to ranks that are gone is refused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from monarch.actor import ActorMesh, ProcMesh
from monarch.debug import Bridge, open_bridge
from monarch_jupyter.errors import CommandError

logger = logging.getLogger("monarch.jupyter.debugger")
Message: TypeAlias = "dict[str, Any]"
T = TypeVar("T")
BEGIN_S = 60.0
STEP_S = 2.0  # after which a step that still runs leaves the page to another paused rank
# Requests that go to the ranks instead of the kernel.
FOR_RANKS = frozenset(
    (
        "setBreakpoints", "setExceptionBreakpoints", "setFunctionBreakpoints", "stackTrace",
        "scopes", "evaluate", "setVariable", "setExpression", "continue", "next", "stepIn",
        "stepOut", "pause", "threads", "exceptionInfo", "completions", "stepInTargets",
    )
)  # fmt: skip
STEPS = frozenset(("next", "stepIn", "stepOut"))
NO_DEBUGGER = (
    "this kernel has no debugger: pip install debugpy where it runs, and restart it; "
    "`%monarch debug NAME` needs none"
)


class LabDebugger:
    """Replaces one kernel's debugger while ranks are debugged."""

    def __init__(self, kernel: Any, on_end: Callable[[str], None]) -> None:
        """`over` gets the reason, on any thread, if the session ends by itself."""
        if getattr(kernel, "debugger", None) is None:
            raise CommandError(NO_DEBUGGER)
        self._kernel = kernel
        self._debugger = kernel.debugger
        self._loop: asyncio.AbstractEventLoop = kernel.control_thread.io_loop.asyncio_loop
        self._ask_kernel: Callable[[Message], Awaitable[Message]] = self._debugger.process_request
        self._kernel_lock = asyncio.Lock()  # ipykernel matches answers by order
        self._on_end = on_end
        self._bridge: Bridge | None = None
        self._number = 0
        self._pending: dict[int, asyncio.Future[Message]] = {}
        self._breakpoints: dict[str, list[Message]] = {}
        self._sources: dict[str, int] = {}
        self._focus = Focus()
        self._initialized = asyncio.Event()
        self._step_timer: asyncio.TimerHandle | None = None

    @property
    def bridge(self) -> Bridge | None:
        """The session with ranks."""
        return self._bridge

    def start(self, mesh: ProcMesh | ActorMesh) -> None:
        """Debug these ranks.

        Raises:
            DebugError: some of them have no debugger; the text says why.
        """
        bridge = open_bridge(mesh, self._on_message)
        self._bridge = bridge
        try:
            self._on_loop(self._begin())
        except BaseException:
            bridge.close()
            self._bridge = None
            raise

    def stop(self) -> None:
        """Debug the kernel again, and resume paused ranks. Idempotent."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            bridge.close()
            self._on_loop(self._end())

    # --- on the loop of the control channel -------------------------------------------------------

    async def _begin(self) -> None:
        for command, arguments in (
            (
                "initialize",
                {"clientID": "jupyterlab", "adapterID": "monarch", "pathFormat": "path"},
            ),
            ("attach", {}),
        ):
            answer = await self._ask_ranks(command, arguments)
            if not answer.get("success"):
                raise CommandError(f"the ranks' debugger: {answer.get('message')}")
        await self._initialized.wait()
        if self._debugger.is_started:
            self._breakpoints = {
                path: list(found) for path, found in self._debugger.breakpoint_list.items() if found
            }
            for path in self._breakpoints:
                await self._set_in_kernel(path, [])
        for path, found in self._breakpoints.items():
            await self._ask_ranks("setBreakpoints", _breakpoints(path, found))
        await self._ask_ranks("configurationDone", {})
        self._debugger.process_request = self.process_request

    async def _end(self) -> None:
        self._debugger.process_request = self._ask_kernel
        if self._step_timer is not None:
            self._step_timer.cancel()
        for reply in self._pending.values():
            reply.set_result({"success": False, "message": "these ranks are no longer debugged"})
        self._pending.clear()
        shown = self._focus.shown
        self._focus = Focus()
        if shown is not None:
            body = {"threadId": shown, "allThreadsContinued": True}
            self._publish({"type": "event", "event": "continued", "seq": 0, "body": body})
        if self._debugger.is_started:
            for path, found in self._breakpoints.items():
                await self._set_in_kernel(path, found)

    async def process_request(self, message: Message) -> Message:
        """Answer a debug request of the page."""
        command = str(message.get("command"))
        if self._bridge is None:
            return await self._forward_to_kernel(message)
        stands = self._focus.shown is not None
        if command == "disconnect":
            threading.Thread(target=self.stop, name="monarch-debug-end", daemon=True).start()
            return await self._forward_to_kernel(message)
        if command == "debugInfo":
            return self._with_rank_state(await self._forward_to_kernel(message))
        if command == "source":
            return await self._source(message)
        if stands and command == "richInspectVariables":
            return await self._inspect_variable(message)
        if command in FOR_RANKS or (stands and command == "variables"):
            return await self._forward_to_ranks(message, command)
        return await self._forward_to_kernel(message)

    async def _forward_to_kernel(self, message: Message) -> Message:
        async with self._kernel_lock:
            return await self._ask_kernel(message)

    async def _forward_to_ranks(self, message: Message, command: str) -> Message:
        arguments = _part(message, "arguments")
        if command in STEPS:
            self._focus.on_step()
            if self._step_timer is not None:
                self._step_timer.cancel()
            self._step_timer = self._loop.call_later(STEP_S, self._show_next)
        answer = await self._ask_ranks(command, arguments)
        body = _part(answer, "body")
        if command == "setBreakpoints" and answer.get("success"):
            path = str(arguments["source"]["path"])
            self._breakpoints[path] = list(arguments.get("breakpoints") or ())
        if command == "variables":
            accept = self._debugger.accept_variable
            found = [one for one in body.get("variables", ()) if accept(one["name"])]
            answer = {**answer, "body": {**body, "variables": found}}
        for frame in body.get("stackFrames", ()):
            source = _part(frame, "source")
            if source.get("sourceReference"):
                self._sources[str(source.get("path"))] = source["sourceReference"]
        return {**answer, "request_seq": message.get("seq", 0), "seq": message.get("seq", 0)}

    async def _source(self, message: Message) -> Message:
        """The text of a file on the kernel's host, or else on the rank's host."""
        path = str(_part(_part(message, "arguments"), "source").get("path"))
        reference = self._sources.get(path)
        if reference is None or _is_file(path):
            return await self._forward_to_kernel(message)
        arguments = {"sourceReference": reference, "source": {"sourceReference": reference}}
        return await self._forward_to_ranks({**message, "arguments": arguments}, "source")

    async def _inspect_variable(self, message: Message) -> Message:
        """The text of a rank's variable; rich displays exist in the kernel only."""
        asked = _part(message, "arguments")
        name = str(asked.get("variableName"))
        arguments = {"expression": name, "frameId": asked.get("frameId"), "context": "clipboard"}
        answer = await self._ask_ranks("evaluate", arguments)
        text = str(_part(answer, "body").get("result", ""))
        return {
            "type": "response", "command": "richInspectVariables",
            "request_seq": message.get("seq", 0), "success": bool(answer.get("success")),
            "body": {"data": {"text/plain": text}, "metadata": {}},
        }  # fmt: skip

    def _with_rank_state(self, answer: Message) -> Message:
        body = dict(_part(answer, "body"))
        body["breakpoints"] = [
            {"source": path, "breakpoints": found} for path, found in self._breakpoints.items()
        ]
        shown = self._focus.shown
        body["stoppedThreads"] = [] if shown is None else [shown]
        body["copyToGlobals"] = False  # a rank's variables are not the notebook's
        return {**answer, "body": body}

    async def _set_in_kernel(self, path: str, found: list[Message]) -> None:
        self._number += 1
        asked = {"type": "request", "seq": self._number, "command": "setBreakpoints",
                 "arguments": _breakpoints(path, found)}  # fmt: skip
        await self._forward_to_kernel(asked)

    async def _ask_ranks(self, command: str, arguments: Message) -> Message:
        bridge = self._bridge
        if bridge is None:
            return {"type": "response", "command": command, "success": False, "body": {},
                    "message": "these ranks are no longer debugged"}  # fmt: skip
        self._number += 1
        number = self._number
        reply = self._pending[number] = self._loop.create_future()
        bridge.said({"type": "request", "seq": number, "command": command, "arguments": arguments})
        return await reply

    # --- messages of ranks ------------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        """Handle a message of the ranks' debugger. Any thread."""
        self._loop.call_soon_threadsafe(self._handle_message, message)

    def _handle_message(self, message: Message) -> None:
        if message["type"] == "response":
            reply = self._pending.pop(message["request_seq"], None)
            if reply is not None and not reply.done():
                reply.set_result(message)
            return
        event, body = message["event"], message["body"]
        if event == "initialized":
            self._initialized.set()
        elif event == "stopped":
            self._show(self._focus.on_stopped(message))
        elif event == "continued":
            self._show(self._focus.on_continued(message))
        elif event == "thread" and body.get("reason") == "exited":
            self._show(self._focus.on_thread_exit(int(body["threadId"])))
        elif event == "output" and body.get("category") == "important":
            self._on_end(str(body.get("output", "")).rstrip())
        elif event == "terminated" and self._bridge is not None:
            threading.Thread(target=self.stop, name="monarch-debug-end", daemon=True).start()

    def _show_next(self) -> None:
        self._show(self._focus.on_step_timeout())

    def _show(self, events: list[Message]) -> None:
        for event in events:
            self._publish(event)

    def _publish(self, event: Message) -> None:
        self._kernel._publish_debug_event(event)  # as ipykernel does with its own

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(BEGIN_S)


def _is_file(path: str) -> bool:
    return Path(path).is_file()


def _part(message: Message, name: str) -> Message:
    """An object in a message, or an empty one."""
    found: Any = message.get(name)
    return cast(Message, found) if isinstance(found, dict) else {}


def _breakpoints(path: str, found: list[Message]) -> Message:
    return {"source": {"path": path}, "breakpoints": found, "sourceModified": False}


_active: LabDebugger | None = None
_lock = threading.Lock()


def debug_in_lab(mesh: ProcMesh | ActorMesh, on_end: Callable[[str], None]) -> str:
    """Attach JupyterLab's debugger to these ranks; return one line about it.

    Raises:
        CommandError: this is impossible; the text says why.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        raise CommandError("there is no page here; `monarch debug --dap` is for other editors")
    global _active
    stop_debugging_in_lab()
    with _lock:
        debugger = LabDebugger(kernel, on_end)
        debugger.start(mesh)
        _active = debugger
    assert debugger.bridge is not None
    names = [one.name for one in debugger.bridge.ranks]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"JupyterLab's debugger is on {names[0]}{more}: turn it on with the bug at the top right, "
        "set breakpoints beside the lines of cells; `%monarch debug --lab off` ends it"
    )


def stop_debugging_in_lab() -> None:
    """Return JupyterLab's debugger to the kernel. Idempotent."""
    global _active
    with _lock:
        debugger, _active = _active, None
    if debugger is not None:
        debugger.stop()


def debugged_in_lab() -> Bridge | None:
    """The session of JupyterLab's debugger with ranks; None if it debugs the kernel."""
    return None if _active is None else _active.bridge


def ranks_debugged_in_lab() -> dict[str, tuple[int, ...]]:
    """The ranks that JupyterLab's debugger debugs, by uid of their mesh."""
    bridge = debugged_in_lab()
    found: dict[str, tuple[int, ...]] = {}
    for one in () if bridge is None else bridge.ranks:
        uid = f"{one.mesh:x}"
        found[uid] = (*found.get(uid, ()), one.rank)
    return found


class Focus:
    """The shown thread and the waiting ones. Methods return the events to publish."""

    def __init__(self) -> None:
        self.shown: int | None = None
        self.is_stepping = False  # the shown thread runs a step and will stop again
        self._waiting: dict[int, Message] = {}

    def on_stopped(self, event: Message) -> list[Message]:
        """A thread has stopped."""
        thread = int(event["body"]["threadId"])
        if self.shown is None or self.shown == thread:
            self.shown, self.is_stepping = thread, False
            return [event]
        self._waiting[thread] = event
        return []

    def on_step(self) -> None:
        """The shown thread runs a step and will stop again soon."""
        self.is_stepping = self.shown is not None

    def on_continued(self, event: Message) -> list[Message]:
        """A thread has resumed."""
        thread = int(event["body"]["threadId"])
        self._waiting.pop(thread, None)
        if thread != self.shown:
            return []
        return [event] if self.is_stepping else [event, *self._next()]

    def on_thread_exit(self, thread: int) -> list[Message]:
        """A thread has ended."""
        self._waiting.pop(thread, None)
        return self._next() if thread == self.shown else []

    def on_step_timeout(self) -> list[Message]:
        """A step takes long: show a waiting thread meanwhile."""
        return self._next() if self.is_stepping and self._waiting else []

    def _next(self) -> list[Message]:
        self.shown, self.is_stepping = None, False
        if not self._waiting:
            return []
        return self.on_stopped(self._waiting.pop(next(iter(self._waiting))))
