"""A real kernel, driven as a front end drives it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

PATIENCE = 60.0
AROUND = "\x1d"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Shown:
    """What one cell showed, in the order in which it came."""

    status: str
    error_name: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def stdout(self) -> str:
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        return self._stream("stderr")

    @property
    def traceback(self) -> str:
        """The error output as text without colours; empty where there was none."""
        blocks = [m["content"]["traceback"] for m in self.messages if m["msg_type"] == "error"]
        return _ESCAPES.sub("", "\n".join(line for block in blocks for line in block))

    @property
    def result(self) -> dict[str, Any]:
        """The value of the last line, by mime type."""
        return next(iter(self._data("execute_result")), {})

    @property
    def displays(self) -> list[dict[str, str]]:
        """What was displayed, but for lines of ranks that are taken apart."""
        return [data for data in self._data("display_data") if not _is_unfolded(data)]

    @property
    def unfolded(self) -> list[dict[str, str]]:
        """Lines of ranks that the cell shows once, rank by rank."""
        return [data for data in self._data("display_data") if _is_unfolded(data)]

    @property
    def kinds(self) -> list[str]:
        return [m["msg_type"] for m in self.messages]

    def _data(self, kind: str) -> list[dict[str, str]]:
        return [m["content"]["data"] for m in self.messages if m["msg_type"] == kind]

    def _stream(self, name: str) -> str:
        streams = [m["content"] for m in self.messages if m["msg_type"] == "stream"]
        return "".join(content["text"] for content in streams if content["name"] == name)


def by_rank(text: str) -> dict[int, list[str]]:
    """The lines of each rank, from lines such as `[gpus=0..1] x`.

    Ranks that print the same line late may each have a line of their own.
    """
    found: dict[int, list[str]] = {}
    for label, line in re.findall(r"^\[gpus=([\d.,]+)\] ?(.*)$", text, re.MULTILINE):
        for part in label.split(","):
            first, _, last = part.partition("..")
            for rank in range(int(first), int(last or first) + 1):
                found.setdefault(rank, []).append(line)
    return found


def _is_unfolded(data: dict[str, str]) -> bool:
    return "by rank: `%monarch logs" in data["text/plain"]


class Kernel:
    """One kernel and its front end, which gives up after `patience_s` seconds without a message."""

    def __init__(
        self, manager: KernelManager, client: BlockingKernelClient, patience_s: float = PATIENCE
    ) -> None:
        self.manager = manager
        self.client = client
        self.patience_s = patience_s

    def run(self, code: str, *, numbered: bool = True) -> Shown:
        """Execute a cell and wait until it has ended; it counts in `In[...]` if it is numbered."""
        shown = Shown("ok")
        for message in self.watch(code, shown, numbered=numbered):
            del message
        return shown

    def watch(
        self, code: str, shown: Shown | None = None, *, numbered: bool = True
    ) -> Iterator[dict[str, Any]]:
        """Execute a cell; its messages as they come, until it has ended."""
        shown = Shown("ok") if shown is None else shown
        request = self.client.execute(code, store_history=numbered)
        while True:
            message = self._next_message()
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                break
            shown.messages.append(message)
            yield message
        reply = self._reply(request)
        shown.status, shown.error_name = reply["status"], reply.get("ename", "")

    def _next_message(self) -> dict[str, Any]:
        """The next message of the kernel to all front ends."""
        return self.client.get_iopub_msg(timeout=self.patience_s)

    def interrupt_when(self, code: str, said: str) -> Shown:
        """Execute a cell and press stop as soon as a line holds that text."""
        shown = Shown("ok")
        pressed = False
        for message in self.watch(code, shown):
            if not pressed and said in message["content"].get("text", ""):
                pressed = True
                self.manager.interrupt_kernel()
        assert pressed, f"{said!r} was not said: {shown.stdout}{shown.stderr}{shown.traceback}"
        return shown

    def ok(self, code: str) -> Shown:
        """Execute a cell that must not fail."""
        shown = self.run(code)
        assert shown.status == "ok", f"{code}\n{shown.traceback}\n{shown.stderr}"
        assert "Traceback" not in shown.stderr, shown.stderr
        return shown

    def hold_output(self, seconds: float) -> None:
        """How long a line waits for its like from other ranks, unless its cell ends before."""
        self.ok(
            f"import monarch_jupyter.cells.output\nmonarch_jupyter.cells.output.HOLD = {seconds}"
        )

    def value(self, expression: str) -> str:
        """The repr of an expression in the notebook's namespace."""
        shown = self.ok(f"print({AROUND!r} + repr(({expression})) + {AROUND!r})")
        return shown.stdout.split(AROUND)[1]  # ranks may write meanwhile

    def refused(self, code: str) -> str:
        """Execute a magic that must refuse; returns its one line."""
        shown = self.run(code)
        assert shown.status == "error", code
        assert shown.error_name == "UsageError", shown.traceback
        assert shown.traceback == ""
        (line,) = shown.stderr.strip().splitlines()
        return line.removeprefix("UsageError: ")

    def new_subshell(self) -> str:
        """A shell of the kernel that answers while the main one is busy."""
        return self.control("create_subshell_request", {})["subshell_id"]

    def send_to_subshell(self, subshell: str, code: str) -> str:
        """Execute code in that shell, beside the running cell; the id of the request."""
        message = self.client.session.msg(
            "execute_request",
            {"code": code, "silent": False, "store_history": False, "user_expressions": {},
             "allow_stdin": False},
        )  # fmt: skip
        message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def run_in_subshell(self, subshell: str, code: str) -> str:
        """Execute code in that shell; its stdout. What the running cell shows meanwhile is lost."""
        request = self.send_to_subshell(subshell, code)
        said = ""
        while True:
            message = self._next_message()
            content = message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                said += content["text"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return said

    def control(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        """Ask on the control channel, which answers while a cell runs; the answer's content."""
        message = self.client.session.msg(kind, content)
        self.client.control_channel.send(message)
        while True:
            reply = self.client.get_control_msg(timeout=PATIENCE)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return reply["content"]

    def wait_until_busy(self, request: str) -> None:
        """Return when the cell of this request has begun."""
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            mine = message["parent_header"].get("msg_id") == request
            if mine and message["msg_type"] == "execute_input":
                return

    def wait_until_written(self, request: str, text: str) -> None:
        """Return when the cell of this request has written that text."""
        written = ""
        while text not in written:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            mine = message["parent_header"].get("msg_id") == request
            if mine and message["msg_type"] == "stream":
                written += message["content"]["text"]

    def complete(self, code: str) -> list[str]:
        """What the front end offers at the end of `code`."""
        request = self.client.complete(code)
        return self._reply(request)["matches"]

    def inspect(self, code: str) -> str:
        """What the front end shows of the name at the end of `code`, as Shift-Tab does."""
        request = self.client.inspect(code)
        return _ESCAPES.sub("", self._reply(request)["data"]["text/plain"])

    def _reply(self, request: str) -> dict[str, Any]:
        while True:
            reply = self.client.get_shell_msg(timeout=self.patience_s)
            if reply["parent_header"].get("msg_id") == request:
                return reply["content"]


@contextmanager
def running_kernel(folder: Path, *, loaded: bool = True) -> Iterator[Kernel]:
    """A kernel, with the extension `loaded`, over sockets in `folder`; ended on the way out."""
    manager = KernelManager(transport="ipc", ip=str(folder / "k"))
    manager.start_kernel(cwd=str(folder))
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=PATIENCE)
        kernel = Kernel(manager, client)
        if not loaded:
            yield kernel
            return
        kernel.ok("%load_ext monarch_jupyter")
        # How much is folded must not depend on how busy this machine is.
        kernel.hold_output(PATIENCE)
        # Nor which cells have bars.
        kernel.ok("import monarch_jupyter.protocol.bars\nmonarch_jupyter.protocol.bars.AFTER = 1e9")
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)
        manager.cleanup_resources()
