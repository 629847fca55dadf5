"""SIGINT in a wait: the wait ends at once, and no answer and no mesh is lost by it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.integration.gates import GateKeeper
from tests.integration.programs import run, running

INTERRUPTED = """
    import sys
    from monarch.actor import Actor, endpoint, this_host
    from tests.integration.sample_actors import Echo
    from tests.integration.gates import Gate

    gate = Gate(sys.argv[1], sys.argv[2])
    procs = this_host().spawn_procs({"gpus": 2})
    echo = procs.spawn("echo", Echo)
    answer = echo.slice(gpus=0).pass_gate.call_one(gate, "kept")
    print("waiting", flush=True)
    try:
        WAIT
        print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(echo.slice(gpus=1).same.call_one("another").get(), flush=True)
    print(answer.get(), flush=True)
    print(echo.rank.call().get().values(), flush=True)
    procs.stop().get()
"""


def interrupt(tmp_path: Path, gate: GateKeeper, wait: str) -> None:
    """Send SIGINT to a client that waits so, and check that it goes on."""
    program_text = INTERRUPTED.replace("WAIT", wait)
    with running(tmp_path, program_text, gate.gate.entered, gate.gate.leave) as program:
        assert program.line() == "waiting"
        gate.wait_entered()
        program.signal(signal.SIGINT)
        assert program.line() == "interrupted"
        assert program.line() == "another"
        gate.open()
        assert program.line() == "kept"
        assert program.line() == "[0, 1]"
        assert program.end() == (0, "", "")


def test_an_interrupted_get_ends_at_once_and_loses_nothing(
    tmp_path: Path, gate: GateKeeper
) -> None:
    interrupt(tmp_path, gate, "answer.get()")


def test_so_does_one_with_a_time_out(tmp_path: Path, gate: GateKeeper) -> None:
    interrupt(tmp_path, gate, "answer.get(timeout=600)")


def test_so_does_one_that_follows_another_thread(tmp_path: Path, gate: GateKeeper) -> None:
    wait = (
        "import threading; threading.Thread(target=answer.get, daemon=True).start(); answer.get()"
    )
    interrupt(tmp_path, gate, wait)


def test_so_does_an_await(tmp_path: Path, gate: GateKeeper) -> None:
    wait = (
        "import asyncio\n"
        "        async def look():\n"
        "            return await answer\n"
        "        asyncio.run(look())"
    )
    interrupt(tmp_path, gate, wait)


def test_ranks_do_not_see_the_interrupts_of_the_client(tmp_path: Path, gate: GateKeeper) -> None:
    program_text = """
        import os, signal, sys
        from monarch.actor import this_host
        from tests.integration.sample_actors import Echo
        from tests.integration.gates import Gate

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gate = Gate(sys.argv[1], sys.argv[2])
        echo = this_host().spawn_procs({"gpus": 2}).spawn("echo", Echo)
        answer = echo.pass_gate.call(gate, "untouched")
        print("waiting", flush=True)
        sys.stdin.readline()
        os.killpg(os.getpgrp(), signal.SIGINT)  # as a terminal does on Control-C
        print("sent", flush=True)
        print(answer.get().values())
    """
    # In a group of its own, so that the signal is for the client and what it has started.
    command = ["setsid", "--wait", sys.executable]
    arguments = (gate.gate.entered, gate.gate.leave)
    with running(tmp_path, program_text, *arguments, command=command) as program:
        assert program.line() == "waiting"
        gate.wait_entered(2)
        program.say("go on")
        assert program.line() == "sent"
        gate.open(2)
        assert program.end() == (0, "['untouched', 'untouched']\n", "")


def test_a_storm_of_interrupts_loses_and_doubles_no_message(tmp_path: Path) -> None:
    program_text = """
        import os, queue, signal, threading
        from monarch.actor import this_host
        from tests.integration.sample_actors import Counter, Recorder

        ROUNDS = 400
        procs = this_host().spawn_procs({"gpus": 2})
        recorder = procs.spawn("recorder", Recorder)
        recorder.note.call(-1).get()
        go = queue.SimpleQueue()
        allowed = False
        interrupts = 0

        def handler(number, frame):
            # Only a wait may be interrupted here: a call that raised would leave its sender
            # wondering whether the message had gone.
            global interrupts
            if allowed:
                interrupts += 1
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, handler)

        def interrupt():
            while go.get():
                os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        for number in range(ROUNDS):
            recorder.note.broadcast((number, "a"))
            answer = recorder.note.call((number, "b"))
            go.put(True)
            while True:
                try:
                    try:
                        allowed = True
                        values = answer.get().values()
                    finally:
                        allowed = False
                    break
                except KeyboardInterrupt:
                    continue
            assert values == [(number, "b")] * 2, values
        go.put(False)
        thread.join()
        expected = [-1] + [(n, x) for n in range(ROUNDS) for x in "ab"]
        assert recorder.take.call().get().values() == [expected] * 2
        procs.stop().get()
        print("interrupted", interrupts > 0)
    """
    status, out, err = run(tmp_path, program_text)
    assert (status, err) == (0, "")
    assert out == "interrupted True\n"


def test_an_interrupt_ends_a_script_that_does_not_catch_it(
    tmp_path: Path, gate: GateKeeper, own_base_directory: Path
) -> None:
    program_text = """
        import sys
        from monarch.actor import this_host
        from monarch.config import configure
        from tests.integration.sample_actors import Echo
        from tests.integration.gates import Gate

        configure(cleanup_timeout="200ms")
        echo = this_host().spawn_procs({"gpus": 2}).spawn("echo", Echo)
        answer = echo.pass_gate.call(Gate(sys.argv[1], sys.argv[2]))
        print("waiting", flush=True)
        answer.get()
    """
    with running(tmp_path, program_text, gate.gate.entered, gate.gate.leave) as program:
        assert program.line() == "waiting"
        gate.wait_entered(2)
        program.signal(signal.SIGINT)
        status, out, err = program.end()
    assert (status, out) == (-signal.SIGINT, "")
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1
    assert list(own_base_directory.glob("monarch-*")) == []
