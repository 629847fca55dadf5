"""A failure that nobody handles ends a script with its cause, unless a hook decides otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.programs import run

PROGRAM = """
    import asyncio, os, signal, sys, threading
    from monarch.actor import Actor, endpoint, this_host
    from monarch.config import configure

    configure(cleanup_timeout="200ms")  # a rank that is held is not waited for

    class Worker(Actor):
        @endpoint
        def die(self):
            print("my last words", file=sys.stderr)
            os._exit(3)

        @endpoint
        def raise_it(self):
            raise ValueError("nobody waits for this")

        @endpoint
        def hold(self):
            signal.pause()

    procs = this_host().spawn_procs({"gpus": 2}, name="mesh")
    worker = procs.spawn("worker", Worker)
    worker.initialized.get()
    WHAT
    print("not reached")
"""


def check(folder: Path, what: str, said: str) -> str:
    """Run it: it must end with status 1, the cause on stderr and no interrupt there."""
    status, out, err = run(folder, PROGRAM.replace("WHAT", what))
    assert (status, out) == (1, "")
    assert said in err
    assert "KeyboardInterrupt" not in err
    return err


DOING = {
    "pause": "signal.pause()",
    "event": "threading.Event().wait()",
    "get": "worker.slice(gpus=1).hold.call_one().get()",
    "loop": "async def main(): await asyncio.Event().wait()\n    asyncio.run(main())",
    "await": "async def main(): await worker.slice(gpus=1).hold.call_one()\n"
    "    asyncio.run(main())",
    "computing": "while True: pass",
}


@pytest.mark.parametrize("doing", DOING)
def test_a_death_that_nobody_handles_ends_the_program_whatever_it_does(
    tmp_path: Path, doing: str
) -> None:
    what = "worker.slice(gpus=0).die.broadcast()\n    " + DOING[doing]
    err = check(tmp_path, what, "exited with status 3")
    assert "mesh[gpus=0]" in err
    assert "while it ran Worker.die" in err
    assert "my last words" in err
    assert "Traceback" not in err


def test_an_exception_that_nobody_waits_for_ends_the_program(tmp_path: Path) -> None:
    err = check(
        tmp_path,
        "worker.slice(gpus=1).raise_it.broadcast(); signal.pause()",
        "Worker.raise_it on mesh[gpus=1] died of ValueError: nobody waits for this",
    )
    assert "in raise_it" in err


def test_what_was_registered_for_the_exit_still_runs(tmp_path: Path) -> None:
    what = """
    import atexit
    atexit.register(lambda: sys.stderr.write("registered\\n"))
    try:
        worker.slice(gpus=0).die.broadcast()
        while True:  # a thread that is about to sleep could miss the signal
            pass
    finally:
        sys.stderr.write("unwound\\n")
    """
    err = check(tmp_path, what, "exited with status 3")
    assert err.endswith("unwound\nregistered\n")


@pytest.mark.parametrize("doing", DOING)
def test_one_that_ignores_interrupts_as_in_the_background_of_a_shell_is_ended_too(
    tmp_path: Path, doing: str
) -> None:
    what = f"""
    import atexit
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit.register(lambda: sys.stderr.write("registered\\n"))
    worker.slice(gpus=0).die.broadcast()
    {DOING[doing]}
    """
    err = check(tmp_path, what, "exited with status 3")
    assert err.endswith("registered\n")
    assert err.count("registered") == 1
    assert "Traceback" not in err


def test_a_program_that_catches_every_interrupt_is_ended_all_the_same(tmp_path: Path) -> None:
    what = """
    worker.slice(gpus=0).die.broadcast()
    while True:
        try:
            signal.pause()
        except BaseException:
            pass
    """
    check(tmp_path, what, "exited with status 3")


def test_a_hook_of_ones_own_is_looked_up_when_the_fault_comes(tmp_path: Path) -> None:
    what = """
    import monarch.actor
    told = []
    came = threading.Event()
    worker.slice(gpus=0).die.broadcast()
    def hook(failure):
        told.append(failure)
        came.set()
    monarch.actor.unhandled_fault_hook = hook
    assert came.wait(60)
    (failure,) = told[0].failures
    print(told[0].mesh_name, failure.rank, failure.message, failure.death.exit_code)
    print(worker.slice(gpus=1).initialized.get())
    sys.exit(0)
    """
    status, out, err = run(tmp_path, PROGRAM.replace("WHAT", what))
    assert (status, out) == (0, "mesh 0 exited with status 3 3\nNone\n")
    assert err == "[mesh gpus=0] my last words\n"


def test_a_hook_that_raises_harms_nobody(tmp_path: Path) -> None:
    what = """
    import monarch.actor
    came = threading.Event()
    def hook(failure):
        came.set()
        raise RuntimeError("a broken hook")
    monarch.actor.unhandled_fault_hook = hook
    worker.slice(gpus=0).die.broadcast()
    assert came.wait(60)
    print(worker.slice(gpus=1).initialized.get())
    sys.exit(0)
    """
    status, out, err = run(tmp_path, PROGRAM.replace("WHAT", what))
    assert (status, out) == (0, "None\n")
    assert "a broken hook" in err


def test_an_error_that_was_caught_does_not_end_the_program_where_a_hook_says_so(
    tmp_path: Path,
) -> None:
    what = """
    import monarch.actor
    monarch.actor.unhandled_fault_hook = lambda failure: None
    print(type(worker.slice(gpus=0).die.call_one().exception()).__name__)
    sys.exit(0)
    """
    status, out, _ = run(tmp_path, PROGRAM.replace("WHAT", what))
    assert (status, out) == (0, "SupervisionError\n")


def test_a_clean_end_says_nothing(tmp_path: Path) -> None:
    for end in ("", "procs.stop().get()", "procs.stop()", "worker.stop().get(); procs.stop()"):
        program = PROGRAM.replace("WHAT", end).replace('    print("not reached")\n', "")
        assert run(tmp_path, program) == (0, "", "")
