"""What a page hears: the panel's comm and the explorer's, driven at the level of the protocol."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.notebook.kernel import PATIENCE, Kernel

TARGET = "monarch.meshes"


class PageComm:
    """The page's end of a comm."""

    def __init__(self, kernel: Kernel, comm_id: str | None = None) -> None:
        self.kernel = kernel
        self.comm_id = comm_id or uuid.uuid4().hex
        if comm_id is None:
            self._send("comm_open", target_name=TARGET, data={})

    def say(self, **data: Any) -> None:
        self._send("comm_msg", data=data)

    def say_on(self, subshell: str, **data: Any) -> str:
        """As JupyterLab does: on a subshell, so that a busy kernel can answer. The message's id."""
        return self._send("comm_msg", subshell, data=data)

    def close(self) -> None:
        self._send("comm_close", data={})

    def hear(self) -> dict[str, Any]:
        """The next message of the kernel on this comm."""
        while True:
            message = self.kernel.client.get_iopub_msg(timeout=PATIENCE)
            content = message["content"]
            if message["msg_type"] == "comm_msg" and content["comm_id"] == self.comm_id:
                data = content["data"]
                return data.get("content", data) if data.get("method") == "custom" else data

    def _send(self, kind: str, subshell: str | None = None, **content: Any) -> str:
        client = self.kernel.client
        message = client.session.msg(kind, {"comm_id": self.comm_id, **content})
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        client.shell_channel.send(message)
        return message["header"]["msg_id"]


@pytest.fixture
def panel(kernel: Kernel) -> Iterator[PageComm]:
    comm = PageComm(kernel)
    yield comm
    comm.close()


def test_a_panel_hears_a_snapshot_and_then_what_changes(kernel: Kernel, panel: PageComm) -> None:
    first = panel.hear()
    assert (first["type"], first["meshes"]) == ("snapshot", [])
    kernel.client.execute("%monarch spawn workers gpus=2")
    states: dict[int, str] = {}
    seq = first["seq"]
    while states != {0: "idle", 1: "idle"}:
        delta = panel.hear()
        assert (delta["type"], delta["seq"]) == ("delta", seq + 1)
        seq = delta["seq"]
        for mesh in delta["meshes"]:
            assert mesh["name"] == "workers"
            assert mesh["sizes"] == {"gpus": 2}
            states |= {row["rank"]: row["state"] for row in mesh["rows"]}


def test_a_panel_hears_while_a_cell_runs(kernel: Kernel, panel: PageComm, tmp_path: Path) -> None:
    panel.hear()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    kernel.ok("%monarch spawn workers gpus=1")
    kernel.client.execute(f"%%monarch on workers\nopen({str(gate)!r}).read()")
    while not any(
        row["state"] == "busy" and (row["actor"], row["endpoint"]) == ("the cell", "run")
        for mesh in panel.hear()["meshes"]
        for row in mesh["rows"]
    ):
        pass
    # The cell has been waiting for this all along.
    gate.write_text("go")
    kernel.ok("'the cell has ended'")


def test_a_page_that_asks_while_a_cell_runs_is_answered(
    kernel: Kernel, panel: PageComm, tmp_path: Path
) -> None:
    panel.hear()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    kernel.ok("%monarch spawn workers gpus=1")
    subshell = kernel.new_subshell()
    running = kernel.client.execute(f"%%monarch on workers\nopen({str(gate)!r}).read()")
    kernel.wait_until_busy(running)
    panel.say_on(subshell, type="sync")
    while panel.hear()["type"] != "snapshot":
        pass
    gate.write_text("go")
    kernel.ok("'the cell has ended'")


def test_a_page_that_missed_something_gets_a_snapshot(kernel: Kernel, panel: PageComm) -> None:
    panel.hear()
    panel.say(type="sync")
    again = panel.hear()
    assert again["type"] == "snapshot"


def test_a_page_loaded_later_finds_the_kernels_comm(kernel: Kernel) -> None:
    known = kernel.client.comm_info(TARGET)
    while True:
        reply = kernel.client.get_shell_msg(timeout=PATIENCE)
        if reply["parent_header"].get("msg_id") == known:
            break
    comm = PageComm(kernel, next(iter(reply["content"]["comms"])))
    comm.say(type="sync")
    assert comm.hear()["type"] == "snapshot"


def test_the_explorer_starts_from_how_things_are_and_answers_its_page(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    shown = kernel.run("%monarch show workers")
    opened = next(
        m["content"]
        for m in shown.messages
        if m["msg_type"] == "comm_open" and "only" in m["content"]["data"]["state"]
    )
    state = opened["data"]["state"]
    assert state["only"] == kernel.value("workers.uid").strip("'")
    assert [row["rank"] for row in state["first"]["meshes"][0]["rows"]] == [0, 1]
    comm = PageComm(kernel, opened["comm_id"])
    comm.say(method="custom", content={"type": "sync", "view": "v"})
    while (message := comm.hear())["type"] != "snapshot":
        pass
    assert [mesh["name"] for mesh in message["meshes"]] == ["workers"]
