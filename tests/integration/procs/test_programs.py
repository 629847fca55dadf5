"""The same lines as a script, in IPython, inside asyncio.run, on a thread; and what they leave."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.integration.programs import run

TEN_LINES = """
    from monarch.actor import Actor, endpoint, this_host

    class Counter(Actor):
        def __init__(self, start):
            self.n = start

        @endpoint
        def add(self, k):
            self.n += k
            return self.n

    procs = this_host().spawn_procs({"gpus": 4})
    counter = procs.spawn("counter", Counter, 10)
    print(counter.add.call(1).get())
    print(counter.slice(gpus=2).add.call_one(5).get())
"""
ANSWER = "ValueMesh({gpus: 4}, [11, 11, 11, 11])\n16\n"


def test_as_a_script_that_stops_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, TEN_LINES) == (0, ANSWER, "")


def test_as_a_script_that_stops_its_mesh(tmp_path: Path) -> None:
    assert run(tmp_path, TEN_LINES + "    procs.stop().get()\n") == (0, ANSWER, "")


def test_inside_asyncio_run(tmp_path: Path) -> None:
    awaited = TEN_LINES.replace(").get())", "))").replace("print(counter", "print(await counter")
    head, _, body = textwrap.dedent(awaited).partition("procs =")
    main = textwrap.indent("procs =" + body, "    ")
    program = f"import asyncio\n{head}\nasync def main():\n{main}\nasyncio.run(main())\n"
    assert run(tmp_path, program) == (0, ANSWER, "")


def test_on_a_thread_that_is_not_the_main_one(tmp_path: Path) -> None:
    body = textwrap.indent(textwrap.dedent(TEN_LINES), "    ")
    program = (
        f"import threading\ndef main():\n{body}\n"
        "thread = threading.Thread(target=main)\nthread.start()\nthread.join()\n"
    )
    assert run(tmp_path, program) == (0, ANSWER, "")


def test_in_ipython_with_cells_that_block_and_cells_that_await(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    cells = textwrap.dedent(TEN_LINES)
    program = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
cells = [{cells!r},
         "print((await counter.add.call(1)).values())",
         "print(counter.add.call(1).get().values())"]
for cell in cells:
    shell.run_cell(cell).raise_error()
"""
    status, out, err = run(tmp_path, program)
    assert (status, err) == (0, "")
    assert out == ANSWER + "[12, 12, 17, 12]\n[13, 13, 18, 13]\n"


def test_a_script_piped_into_python_has_no_file_and_works_all_the_same(tmp_path: Path) -> None:
    program = f"""
        import subprocess, sys
        program = {textwrap.dedent(TEN_LINES)!r}
        done = subprocess.run([sys.executable, "-"], input=program, text=True)
        sys.exit(done.returncode)
    """
    assert run(tmp_path, program) == (0, ANSWER, "")


def test_importing_the_api_starts_nothing_and_loads_nothing_heavy(tmp_path: Path) -> None:
    program = """
        import sys, threading, os
        import ctypes  # libffi may keep a descriptor of its own file open
        before = len(os.listdir("/proc/self/fd"))
        import monarch.actor, monarch.observe, monarch.config
        heavy = {"torch", "numpy", "IPython", "asyncio", "jupyter_client"} & set(sys.modules)
        print(sorted(heavy), threading.active_count(), len(os.listdir("/proc/self/fd")) - before)
    """
    assert run(tmp_path, program) == (0, "[] 1 0\n", "")


def test_nothing_is_left_of_a_script(tmp_path: Path, own_base_directory: Path) -> None:
    before = set(own_base_directory.iterdir())
    program = TEN_LINES + textwrap.dedent("""
        import os, pathlib, psutil
        children = psutil.Process().children(recursive=True)
        print(len(children), *(child.pid for child in children))
    """).replace("\n", "\n    ")
    status, out, err = run(tmp_path, program)
    assert (status, err) == (0, "")
    count, *pids = out.splitlines()[-1].split()
    assert int(count) == 6  # the agent, its zygote, four procs
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert set(own_base_directory.iterdir()) == before


def test_what_a_script_prints_after_an_error_it_did_not_catch_is_its_traceback_alone(
    tmp_path: Path,
) -> None:
    program = """
        from monarch.actor import Actor, endpoint, this_host

        class Failing(Actor):
            @endpoint
            def fail(self):
                raise ValueError("wrong")

        failing = this_host().spawn_procs({"gpus": 2}).spawn("failing", Failing)
        failing.fail.call().get()
    """
    status, out, err = run(tmp_path, program)
    assert (status, out) == (1, "")
    assert "Failing.fail on procs[gpus=" in err
    assert "raised ValueError: wrong" in err
    assert err.count("Traceback (most recent call last)") <= 2


def test_shutdown_and_a_new_start_in_one_script(tmp_path: Path) -> None:
    program = """
        from monarch.actor import Actor, endpoint, shutdown_context, this_host

        class One(Actor):
            @endpoint
            def one(self):
                return 1

        for _ in range(3):
            procs = this_host().spawn_procs({"gpus": 2})
            print(procs.spawn("one", One).one.call().get().values())
            shutdown_context()
            shutdown_context()
        try:
            procs.spawn("one", One)
        except Exception as error:
            print(type(error).__name__)
    """
    status, out, err = run(tmp_path, program)
    assert (status, err) == (0, "")
    assert out.splitlines()[:3] == ["[1, 1]"] * 3
    assert out.splitlines()[3] == "MeshStoppedError"


def test_threads_of_the_client_do_not_matter(tmp_path: Path) -> None:
    program = f"""
import threading
stop = threading.Event()
busy = [threading.Thread(target=stop.wait) for _ in range(5)]
for thread in busy:
    thread.start()
{textwrap.dedent(TEN_LINES)}
stop.set()
"""
    assert run(tmp_path, program) == (0, ANSWER, "")
