"""A page shows the kernel as busy until the cell ends, whatever it asks of it meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

from monarch_jupyter.page.kernel_status import relabelled
from tests.integration.gates import gate_in
from tests.notebook.kernel import PATIENCE, Kernel
from tests.notebook.test_pages import PageComm

UNTRACKED = cast("list[str]", cast("Any", MappingKernelManager).untracked_message_types.default())


def shown(messages: list[dict[str, Any]]) -> list[str]:
    """The states that JupyterLab shows in turn."""
    states = [
        message["content"]["execution_state"]
        for message in messages
        if message["msg_type"] == "status"
        and message["parent_header"].get("msg_type") not in UNTRACKED
    ]
    return [state for at, state in enumerate(states) if at == 0 or states[at - 1] != state]


@pytest.mark.parametrize("asks", ["panel", "control"])
def test_the_kernel_is_shown_busy_until_the_cell_ends(
    kernel: Kernel, tmp_path: Path, asks: str
) -> None:
    panel = PageComm(kernel)
    with gate_in(tmp_path) as gate:
        panel.hear()
        subshell = kernel.new_subshell()
        request = kernel.client.execute(
            f"with open({gate.gate.leave!r}, 'rb', buffering=0) as pipe:\n    pipe.read(1)"
        )
        kernel.wait_until_busy(request)
        if asks == "panel":
            asked = panel.say_on(subshell, type="ask", view="v", id=1, what={"do": "sessions"})
        else:
            message = kernel.client.session.msg("create_subshell_request", {})
            kernel.client.control_channel.send(message)
            asked = message["header"]["msg_id"]
        heard: list[dict[str, Any]] = []

        def hear_until_idle(of: str) -> None:
            while True:
                heard.append(kernel.client.get_iopub_msg(timeout=PATIENCE))
                mine = heard[-1]["parent_header"].get("msg_id") == of
                if mine and heard[-1]["content"].get("execution_state") == "idle":
                    return

        hear_until_idle(asked)  # so that the page knows its message to be done with
        assert shown(heard) == []
        gate.open()
        hear_until_idle(request)
        assert shown(heard) == ["idle"]
        panel.close()


def test_cells_keep_their_statuses_on_every_shell() -> None:
    cell = {"header": {"msg_id": "1", "msg_type": "execute_request"}}
    assert relabelled(cell) is cell
    assert relabelled({}) == {}
    comm = {"header": {"msg_id": "2", "msg_type": "comm_msg"}, "msg_type": "comm_msg"}
    assert relabelled(comm)["header"]["msg_id"] == "2"
    assert relabelled(comm)["header"]["msg_type"] in UNTRACKED
    assert comm["header"]["msg_type"] == "comm_msg"
