"""The dashboard from another machine: Chromium, `ssh -L`, and an sshd that forwards."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from monarch.actor import this_host
from tests import ssh
from tests.browser.lab import PATIENCE_MS
from tests.browser.test_dashboard import PATIENCE_S, opened
from tests.integration.admin_server import AdminProcess, dashboard_server, session_name
from tests.integration.failing_actors import Faulty
from tests.integration.gates import gate_in

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(ssh.why_not()), reason=ssh.why_not()),
]
LAPTOP = "127.0.0.2"
"""The address of loopback that stands for the other machine: there the port of the page is free."""


@contextmanager
def served() -> Iterator[tuple[AdminProcess, Faulty]]:
    """`monarch dashboard` over two ranks, and their actor; ranks have stopped after the block."""
    # Playwright runs a loop on this thread, on which nothing may block.
    with ThreadPoolExecutor(1) as thread:
        mesh = this_host().spawn_procs({"gpus": 2}, name="workers")
        try:
            with dashboard_server("--session", session_name()) as server:
                yield server, mesh.spawn("holder", Faulty)
        finally:
            thread.submit(mesh.stop().get, PATIENCE_S).result()


def at_laptop(server: AdminProcess) -> str:
    """The address that the dashboard has printed, as it is opened on the other machine."""
    page: str = server.said["page"]
    return page.replace("127.0.0.1", LAPTOP)


def expect_second(page: Page, state: str) -> None:
    expect(page.get_by_role("gridcell", name=f"workers gpus=1: {state}")).to_be_visible()


@contextmanager
def forwarded(folder: Path, port: int) -> Iterator[None]:
    """The command of the how-to: that port of host h1, at the same port of LAPTOP."""
    process = subprocess.Popen(
        [
            *ssh.here(folder, ("h1",)).ssh, "-o", "ExitOnForwardFailure=yes",
            "-L", f"{LAPTOP}:{port}:127.0.0.1:{port}", "h1", "echo forwarding; cat",
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "forwarding\n"
        yield
    finally:
        process.terminate()  # else it would wait for the connections of the page
        process.communicate(timeout=PATIENCE_S)


def test_a_page_behind_ssh_follows_what_a_rank_does(browser: Browser, tmp_path: Path) -> None:
    with (
        gate_in(tmp_path) as gate,
        served() as (server, holder),
        forwarded(tmp_path / "ssh", server.port),
        opened(browser, at_laptop(server)) as page,
    ):
        expect(page.get_by_role("status").first).to_have_text("live: 1 mesh, 2 ranks")
        assert page.url == f"http://{LAPTOP}:{server.port}/dashboard/"
        expect_second(page, "idle")
        holder.slice(gpus=1).hold.broadcast(gate.gate)
        expect_second(page, "busy")
        gate.open()
        expect_second(page, "idle")


def test_a_page_whose_ssh_has_ended_says_so_and_goes_on_with_the_next_one(
    browser: Browser, tmp_path: Path
) -> None:
    expect.set_options(timeout=PATIENCE_MS)
    page = browser.new_page()
    with gate_in(tmp_path) as gate, served() as (server, holder):
        with forwarded(tmp_path / "first", server.port):
            page.goto(at_laptop(server))
            expect_second(page, "idle")
        expect(page.get_by_role("alert")).to_contain_text("This is the last known state")
        holder.slice(gpus=1).hold.broadcast(gate.gate)
        with forwarded(tmp_path / "second", server.port):
            expect_second(page, "busy")
            expect(page.get_by_role("alert")).to_have_count(0)
            gate.open()
            expect_second(page, "idle")
            page.close()
