"""Ctrl-C at a prompt is noticed also where it has cut no wait short."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from monarch._src.cli.debug import WAKE_SIGNAL, prompt_interrupts
from tests.integration.programs import PATIENCE_S
from tests.integration.terminals import terminal

# What another thread is sent is noted for the main one as what came just before its wait is: that
# reads from descriptor 0 already, and nothing cuts it short.
ASKS = """
import signal, sys, threading
from pathlib import Path
from monarch._src.cli.debug import prompt_interrupts

main = Path(f"/proc/self/task/{threading.main_thread().native_id}/syscall")

def press():
    while main.read_text().split()[1:2] != ["0x0"]:
        pass
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

with prompt_interrupts():
    for _ in range(3):
        thread = threading.Thread(target=press)
        try:
            thread.start()
            input()
        except KeyboardInterrupt:
            print("noticed", flush=True)
        thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_ctrl_c_that_has_cut_no_wait_short_is_noticed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as asks:
        try:
            assert asks.wait(PATIENCE_S) == 0
        finally:
            asks.kill()
        assert asks.stdout is not None
        assert asks.stdout.read() == "noticed\n" * 3


PROMPTS = """
import readline
from monarch._src.cli.debug import prompt_interrupts

with prompt_interrupts():
    while True:
        try:
            print("got", input("ask> "))
        except KeyboardInterrupt:
            print("interrupted")
        except EOFError:
            break
"""


@pytest.mark.parametrize("busy", [0, 3])
def test_the_prompt_comes_back_after_ctrl_c_at_any_moment(busy: int) -> None:
    chance = random.Random(11)
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        with terminal(["-c", PROMPTS]) as shown:
            shown.until("ask> ")
            for _ in range(200 if not busy else 50):
                shown.type("a line\n")
                shown.until("got a line")
                shown.until("ask> ")
                shown.type("half a line")
                moment = time.perf_counter() + chance.uniform(0, 0.002)
                while time.perf_counter() < moment:
                    pass
                shown.type("\x03")
                shown.until("interrupted")
                shown.until("ask> ")
            shown.type("\x04")
            assert shown.end() == 0
    finally:
        for each in load:
            each.kill()
            each.wait()


def test_a_terminal_has_its_mode_back_afterwards() -> None:
    modes = "import termios; print('mode', termios.tcgetattr(0)[3] & termios.NOFLSH != 0)\n"
    inside = f"with prompt_interrupts():\n    {modes}"
    program = f"from monarch._src.cli.debug import prompt_interrupts\n{inside}{modes}"
    with terminal(["-c", program]) as shown:
        shown.until("mode True")
        shown.until("mode False")
        assert shown.end() == 0


def test_afterwards_all_is_as_before() -> None:
    before = signal.getsignal(WAKE_SIGNAL), threading.active_count()
    with prompt_interrupts():
        signal.raise_signal(WAKE_SIGNAL)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert threading.active_count() == before[1] + 1
    assert (signal.getsignal(WAKE_SIGNAL), threading.active_count()) == before
    assert signal.set_wakeup_fd(-1) == -1
