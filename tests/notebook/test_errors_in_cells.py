"""An error of ranks in a cell: the cause first, in the user's terms; only the cell ends."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.notebook.kernel import Kernel

FRAIL = """
import os
from monarch.actor import Actor, endpoint, context

class Frail(Actor):
    def __init__(self):
        self.rank = context().actor_instance.rank.rank

    @endpoint
    def step(self, bad):
        if self.rank in bad:
            self.fail()
        return self.rank

    def fail(self):
        raise ValueError("the loss is not a number")

    @endpoint
    def own_way(self):
        raise ValueError(f"rank {self.rank} has its own reason")

    @endpoint
    def die(self):
        os._exit(3)

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def look_up(self, key):
        try:
            return {}[key]
        except KeyError as error:
            raise RuntimeError("no such setting") from error

    @endpoint
    def recurse(self):
        def deeper():
            deeper()
        deeper()
"""


DOCUMENTED = '''
from monarch.actor import Actor, endpoint
class Trainer(Actor):
    @endpoint
    def fit(self, epochs: int, *, rate: float = 0.1) -> float:
        """Fit for so many epochs."""
        return rate
'''


def test_an_endpoint_is_shown_with_its_own_signature_and_text(kernel: Kernel) -> None:
    kernel.ok(f"%monarch spawn workers gpus=1\n{DOCUMENTED}t = workers.spawn('t', Trainer)")
    shown = kernel.inspect("t.fit")
    assert "t.fit(epochs: int, *, rate: float = 0.1) -> float\n" in shown
    assert "Fit for so many epochs." in shown


def test_who_waits_for_a_broadcast_is_told_that_nothing_comes_back(kernel: Kernel) -> None:
    kernel.ok(f"%monarch spawn workers gpus=1\n{DOCUMENTED}t = workers.spawn('t', Trainer)")
    hint = ".broadcast(...) returns None; .call(...) returns a future of the answers"
    said = kernel.run("t.fit.broadcast(1).get()").traceback
    assert f"'NoneType' object has no attribute 'get'; {hint}" in said
    assert hint in kernel.run("await t.fit.broadcast(1)").traceback
    assert hint not in kernel.run("None.get()").traceback


WAIT = """%%monarch on workers
def wait(gate):
    import os, threading
    while not os.path.exists(gate):
        threading.Event().wait(0.02)
"""


def test_an_error_tells_how_many_ranks_still_run(kernel: Kernel, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    kernel.ok("%monarch spawn workers gpus=3")
    kernel.ok(WAIT)
    said = kernel.run(f"%%monarch on workers\nif rank == 0: 1/0\nwait({str(gate)!r})").traceback
    gate.touch()
    assert "the cell on workers[gpus=0] raised ZeroDivisionError" in said
    assert "2 ranks have not answered the cell yet" in said
    kernel.ok("%%monarch on workers\nrank")


ASKING = """
import getpass
from monarch.actor import Actor, endpoint
class Asking(Actor):
    @endpoint
    def name(self):
        return input("name? ")
    @endpoint
    def word(self):
        return getpass.getpass("password? ")
    @endpoint
    def end(self):
        raise EOFError("the file is cut off")
"""


def test_what_waits_for_typing_on_a_rank_says_what_to_do_instead(kernel: Kernel) -> None:
    kernel.ok(f"%monarch spawn workers gpus=1\n{ASKING}a = workers.spawn('a', Asking)")
    remedy = "a rank has no keyboard: ask in the client, and pass the answer as an argument"
    said = kernel.run("a.name.call_one().get()").traceback
    assert f"raised EOFError: EOF when reading a line; {remedy}" in said
    assert f"raised EOFError: {remedy}" in kernel.run("a.word.call_one().get()").traceback
    assert remedy in kernel.run("%%monarch on workers\ninput()").traceback
    assert remedy not in kernel.run("a.end.call_one().get()").traceback


def test_every_frame_is_not_offered_where_a_death_has_none(kernel: Kernel) -> None:
    frail(kernel, ranks=2)
    shown = kernel.run("frail.slice(gpus=0).die.call_one().get()")
    assert "died while it ran Frail.die: exited with status 3" in shown.traceback
    assert shown.displays == []
    shown = kernel.run("frail.slice(gpus=1).step.call_one([1]).get()")
    assert [data["text/plain"] for data in shown.displays] == ["(every frame: %monarch error)"]


ONLY_THERE = """
import sys, types
from monarch.actor import Actor, endpoint
class Only(Actor):
    @endpoint
    def there(self):
        lab = sys.modules["lab"] = types.ModuleType("lab")
        lab.Thing = type("Thing", (), {"__module__": "lab"})
        return lab.Thing()
"""


def test_an_answer_that_the_notebook_cannot_rebuild_is_told_in_the_users_line(
    kernel: Kernel,
) -> None:
    kernel.ok(f"%monarch spawn workers gpus=2\n{ONLY_THERE}only = workers.spawn('only', Only)")
    said = kernel.run("only.slice(gpus=1).there.call_one().get()").traceback
    assert "the answer of Only.there on workers[gpus=1], which holds lab.Thing, cannot be" in said
    assert "/monarch/" not in said, "the runtime's own frames"
    assert "/monarch/" not in kernel.run("only.there.call().get().values()").traceback
    why = "<cannot be rebuilt in the notebook: ModuleNotFoundError: No module named 'lab'>"
    shown = kernel.ok("only.there.call().get()").result
    assert why in shown["text/plain"]
    assert "cannot be rebuilt" in shown["text/html"]
    cell = "%%monarch on workers\nimport sys, types\nlab = sys.modules['lab']\nlab.Thing()"
    assert why in kernel.ok(cell).result["text/plain"]


def frail(kernel: Kernel, ranks: int = 4) -> None:
    kernel.ok(f"%monarch spawn workers gpus={ranks}")
    kernel.ok(f"{FRAIL}\nfrail = workers.spawn('frail', Frail)")


def test_ranks_that_fail_alike_are_one_entry_with_the_line_that_raised(kernel: Kernel) -> None:
    frail(kernel, 8)
    shown = kernel.run("x = 1\nfrail.step.call(range(1, 8)).get()")
    assert shown.error_name == "ActorError"
    text = shown.traceback
    first, second, *_ = text.splitlines()
    assert first == (
        "ActorError: Frail.step on workers[gpus=1] raised ValueError: the loss is not a number"
    )
    assert second == "and on 6 more ranks: gpus=2..7"
    assert text.count("and on") == 1
    assert re.search(r"Cell In\[\d+\], line \d+, in fail", text)
    assert '    raise ValueError("the loss is not a number")' in text
    assert "_src" not in text, "frames of the runtime are shown"


def test_what_an_error_came_of_is_shown_with_its_lines(kernel: Kernel) -> None:
    frail(kernel, 2)
    text = kernel.run("frail.look_up.call('lr').get()").traceback
    assert re.search(r"^because of KeyError: 'lr'\n  Cell In\[\d+\], line", text, re.MULTILINE)
    assert re.search(r"-> \d+             return \{\}\[key\]", text)
    assert "_src" not in text


def test_an_endless_recursion_is_shown_in_a_screenful(kernel: Kernel) -> None:
    frail(kernel, 2)
    text = kernel.run("frail.recurse.call().get()").traceback
    assert "raised RecursionError" in text
    assert re.search(r"\.\.\. the same \d+ more times \.\.\.", text)
    assert len(text.splitlines()) < 30


def test_an_error_of_the_cell_that_came_of_one_of_ranks_shows_no_frames_of_the_runtime(
    kernel: Kernel,
) -> None:
    frail(kernel, 2)
    ask = "frail.step.call([0]).get()"
    for raising in ("raise RuntimeError('no step') from error", "raise RuntimeError('no step')"):
        shown = kernel.run(f"try:\n    {ask}\nexcept Exception as error:\n    {raising}")
        assert shown.error_name == "RuntimeError"
        assert f"-> 4     {raising}" in shown.traceback
        assert "ActorError: Frail.step on workers[gpus=0] raised ValueError" in shown.traceback
        assert "_src" not in shown.traceback
        assert kernel.value("__import__('sys').last_value.__context__.__cause__") == (
            "ValueError('the loss is not a number')"
        )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.TaskGroup came with Python 3.11")
def test_an_error_of_a_group_of_tasks_shows_no_frames_of_the_runtime(kernel: Kernel) -> None:
    frail(kernel, 2)
    shown = kernel.run(
        "import asyncio\nasync def ask():\n    await frail.step.call([0])\n"
        "async with asyncio.TaskGroup() as group:\n    group.create_task(ask())"
    )
    assert "raised ValueError: the loss is not a number" in shown.traceback + shown.stderr
    assert "_src" not in shown.traceback + shown.stderr


def test_the_line_that_called_ends_the_trace_also_where_a_library_waits_for_it(
    kernel: Kernel,
) -> None:
    frail(kernel, 2)
    shown = kernel.run("import asyncio\nawait asyncio.gather(frail.step.call([0]))")
    assert shown.traceback.rstrip().endswith("-> 2 await asyncio.gather(frail.step.call([0]))")


def test_what_can_be_done_about_a_death_is_said_with_it(kernel: Kernel) -> None:
    frail(kernel)
    for code in ("frail.slice(gpus=1).die.call().get()", "frail.step.call([]).get()"):
        text = kernel.run(code).traceback
        assert "calls that include workers[gpus=1] raise from now on. " in text
        assert 'restart="on-failure"' in text
        assert "\n%%monarch on workers[gpus=2:4]\n%%monarch on workers[gpus=0]\n" in text
        assert "\n%monarch restart workers[gpus=1]\n" in text
    kernel.ok(
        "from monarch.actor import this_host\n"
        "again = this_host().spawn_procs({'gpus': 2}, restart='on-failure')\n"
        "frail = again.spawn('frail', Frail)"
    )
    text = kernel.run("frail.slice(gpus=1).die.call().get()").traceback
    assert "the process is being restarted, and its state in memory is lost" in text
    assert "from now on" not in text
    kernel.ok("again.stop().get()")


def test_a_cell_on_ranks_that_wants_a_variable_of_the_notebook_says_whose_it_is(
    kernel: Kernel,
) -> None:
    kernel.ok("%monarch spawn workers gpus=2\nrate = 0.1")
    said = (
        "'rate' is a variable of the notebook, and ranks have their own; to send it:\n"
        "%%monarch on workers[gpus=1] --push rate\n"
    )
    assert said in kernel.run("%%monarch on workers[gpus=1]\nprint(rate)").traceback + "\n"
    text = kernel.run("%%monarch on workers\nprint(rote)").traceback
    assert "name 'rote' is not defined" in text
    assert "of the notebook" not in text


def test_the_line_that_called_is_shown_too(kernel: Kernel) -> None:
    frail(kernel)
    text = kernel.run("x = 1\nfrail.step.call([2]).get()").traceback
    assert re.search(r"called from\n  Cell In\[\d+\], line 2\n", text)
    assert "----> 2 frail.step.call([2]).get()" in text


def test_ranks_that_each_say_their_own_of_a_failure_are_one_entry(kernel: Kernel) -> None:
    frail(kernel)
    text = kernel.run("frail.own_way.call().get()").traceback
    assert [f"rank {rank} has its own reason" in text for rank in range(4)] == [True] * 4
    assert text.count("in own_way") == 1


def test_every_frame_is_one_click_or_one_magic_away(kernel: Kernel) -> None:
    frail(kernel)
    shown = kernel.run("frail.step.call([2]).get()")
    (display,) = shown.displays
    assert "<details" in display["text/html"]
    assert "Traceback (most recent call last)" in display["text/html"]
    assert "%monarch error" in display["text/plain"]
    whole = kernel.ok("%monarch error").stdout
    assert "Traceback (most recent call last)" in whole
    assert (
        f"pid {kernel.ok('frail.slice(gpus=2).pid.call_one().get()').result['text/plain']}" in whole
    )


def test_an_error_looked_at_as_a_value_reads_the_same(kernel: Kernel) -> None:
    frail(kernel)
    kernel.ok("try:\n    frail.step.call([1]).get()\nexcept Exception as e:\n    error = e")
    shown = kernel.ok("error").result
    assert "raised ValueError: the loss is not a number" in shown["text/plain"]
    assert "<details" in shown["text/html"]


def test_actors_survive_their_exceptions(kernel: Kernel) -> None:
    frail(kernel)
    kernel.run("frail.step.call([0, 1, 2, 3]).get()")
    kernel.ok("frail.step.call([]).get()")
    assert kernel.value("_.values()") == "[0, 1, 2, 3]"


def test_a_dead_rank_ends_the_cell_and_neither_the_kernel_nor_its_variables(
    kernel: Kernel,
) -> None:
    frail(kernel)
    kernel.ok("import os\nkept = ['a', 'b']")
    before = kernel.value("os.getpid()")
    shown = kernel.run("frail.slice(gpus=1).die.call().get()")
    assert shown.error_name == "SupervisionError"
    assert "gpus=1" in shown.traceback
    assert "3" in shown.traceback
    assert kernel.value("os.getpid()") == before
    assert kernel.value("kept") == "['a', 'b']"


def test_calls_with_the_dead_rank_raise_and_calls_without_it_work(kernel: Kernel) -> None:
    frail(kernel)
    kernel.run("frail.slice(gpus=1).die.call().get()")
    later = kernel.run("frail.step.call([]).get()")
    assert later.error_name == "SupervisionError"
    assert "gpus=1" in later.traceback
    kernel.ok("frail.slice(gpus=slice(2, 4)).step.call([]).get()")
    assert kernel.value("_.values()") == "[2, 3]"
    assert "3 idle" in kernel.ok("%monarch ls").result["text/plain"]
    assert "1 failed" in kernel.ok("%monarch ls").result["text/plain"]


def test_a_failure_that_nobody_waits_for_is_said_once_in_the_notebook(kernel: Kernel) -> None:
    frail(kernel)
    kernel.ok("import os\nkept = os.getpid()")
    shown = kernel.ok(
        "import monarch.actor, threading\n"
        "seen = threading.Event()\nhook = monarch.actor.unhandled_fault_hook\n"
        "def told(failure):\n    hook(failure)\n    hook(failure)\n    seen.set()\n"
        "monarch.actor.unhandled_fault_hook = told\n"
        "try:\n"
        "    frail.slice(gpus=2).die.broadcast()\n    assert seen.wait(30)\n"
        "finally:\n    monarch.actor.unhandled_fault_hook = hook"
    )
    assert len(re.findall(r"^monarch: .*gpus=2", shown.stderr, re.MULTILINE)) == 1
    assert "calls that include workers[gpus=2] raise from now on" in shown.stderr
    assert "makes the actors there anew: `%monarch restart workers[gpus=2]`\n" in shown.stderr
    assert kernel.value("os.getpid() == kept") == "True"
    assert kernel.run("frail.step.call([]).get()").error_name == "SupervisionError"


def test_an_error_of_anything_else_looks_as_it_always_did(kernel: Kernel) -> None:
    shown = kernel.run("1/0")
    assert shown.error_name == "ZeroDivisionError"
    assert "Traceback (most recent call last)" in shown.traceback


REFUSED = {
    "frail.step.call_one([]).get()": "call_one needs a mesh of one rank",
    "frail.stp.call([])": "Frail has no endpoint 'stp'",
    "frail.step.call()": "missing a required argument: 'bad'",
    "frail.step([])": ".step.call(...) (every rank)",
    "workers.spawn('other', int)": "int",
    "workers.slice(gpus=9)": "9",
    "import threading\nfrail.step.call([threading.Lock()])": "cannot pickle '_thread.lock'",
    "await frail.step.call_one([])": "call_one needs a mesh of one rank",
    "workers.stop().get()\nfrail.step.call([]).get()": "has been stopped",
}


def test_what_the_runtime_refuses_is_shown_by_the_line_that_asked_for_it(kernel: Kernel) -> None:
    frail(kernel, 2)
    for code, why in REFUSED.items():
        shown = kernel.run(code)
        assert shown.status == "error"
        assert why in shown.traceback
        assert f"-> {len(code.splitlines())} {code.splitlines()[-1]}" in shown.traceback
        assert "_src" not in shown.traceback, "frames of the runtime are shown"
        assert len(shown.traceback.splitlines()) < 12


def test_every_frame_of_a_refusal_is_one_magic_away(kernel: Kernel) -> None:
    frail(kernel, 1)
    code = "def ask(mesh):\n    return mesh.slice(gpus=9)\nask(workers)"
    shown = kernel.run(code)
    assert "-> 3 ask(workers)" in shown.traceback
    assert "-> 2     return mesh.slice(gpus=9)" in shown.traceback
    assert "_src" not in shown.traceback
    kernel.run("%tb")
    whole = kernel.run("%tb").traceback
    assert "-> 2     return mesh.slice(gpus=9)" in whole
    assert "_src" in whole


def test_a_handler_of_other_exceptions_that_was_there_before_still_has_them(
    kernel: Kernel,
) -> None:
    kernel.ok("%unload_ext monarch_jupyter")
    try:
        kernel.ok(
            "def show(shell, kind, error, trace, tb_offset=None):\n"
            "    print('mine:', error)\n"
            "get_ipython().set_custom_exc((ZeroDivisionError,), show)"
        )
        kernel.ok("%load_ext monarch_jupyter")
        assert kernel.run("1/0").stdout == "mine: division by zero\n"
        assert "Traceback" in kernel.run("{}['no']").traceback
        kernel.ok("%unload_ext monarch_jupyter")
        assert kernel.run("1/0").stdout == "mine: division by zero\n"
    finally:  # the kernel is that of the next test as well
        kernel.ok("get_ipython().set_custom_exc((), None)")
        kernel.ok("%load_ext monarch_jupyter")


@pytest.mark.slow
def test_a_batch_run_records_the_error_and_stops() -> None:
    cells = [
        "%load_ext monarch_jupyter",
        "%monarch spawn workers gpus=2",
        "%%monarch on workers\nassert rank == 0, 'not me'",
        "unreached = True",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=60)
        manager = client.create_kernel_manager()
        manager.transport, manager.ip = "ipc", str(Path(folder) / "k")
        with pytest.raises(CellExecutionError) as caught:
            client.execute()
    assert "the cell on workers[gpus=1] raised AssertionError: not me" in str(caught.value)
    (error,) = [o for o in notebook.cells[2].outputs if o.output_type == "error"]
    assert error.ename == "ActorError"
    assert notebook.cells[3].execution_count is None


def test_a_death_that_the_cell_raises_needs_no_notice_beside_it(kernel: Kernel) -> None:
    frail(kernel)
    shown = kernel.run("frail.slice(gpus=1).die.call().get()")
    assert shown.error_name == "SupervisionError"
    assert shown.stderr == ""
    assert kernel.ok("1 + 1").stderr == ""


def test_a_host_agent_that_dies_shows_nothing_of_the_runtime_in_the_cell(
    fresh_kernel: Kernel,
) -> None:
    kernel = fresh_kernel
    kernel.ok("%monarch spawn workers gpus=1")
    kernel.ok(
        "import contextlib, os, signal\n"
        "from monarch import session\n"
        "(mine,) = [one for one in session.sessions() if one.client_pid == os.getpid()]"
    )
    # It has ended when the cell comes to its value, and nobody may have noticed yet.
    shown = kernel.run(
        "os.kill(mine.agent_pid, signal.SIGKILL)\n"
        "with contextlib.suppress(ChildProcessError):\n"
        "    os.waitid(os.P_PID, mine.agent_pid, os.WEXITED | os.WNOWAIT)\n"
        "'the value'"
    )
    assert "flush" not in shown.traceback
    assert "RuntimeError" not in shown.traceback + shown.stderr


def test_a_refused_spawn_says_what_failed_and_what_to_do(kernel: Kernel) -> None:
    frail(kernel)
    kernel.run("frail.slice(gpus=1).die.call_one().get()")
    text = kernel.run("workers.spawn('more', Frail)").traceback
    assert re.search(r"workers\[gpus=1\] \(pid \d+\) died earlier, while it ran Frail\.die", text)
    assert "'more' is not spawned. `%monarch spawn --restart` (in code" in text
    assert "\n%%monarch on workers[gpus=2:4]\n" in text
    assert "\n%monarch restart workers[gpus=1]\n" in text


@pytest.mark.slow
def test_a_recursion_in_what_the_runtime_calls_is_told_by_its_ends(kernel: Kernel) -> None:
    frail(kernel, 1)
    kernel.ok(
        "def dive(depth):\n    if not depth:\n        raise KeyError('the bottom')\n"
        "    dive(depth - 1)\n"
        "class Deep:\n    def __reduce__(self):\n        dive(900)"
    )
    asked = "frail.step.call(Deep())"
    shown = kernel.run(asked)
    assert "the bottom" in shown.traceback
    assert asked in shown.traceback
    asked = "this_host().spawn_procs(bootstrap_command=lambda point: dive(900))"
    shown = kernel.run(f"from monarch.actor import this_host\n{asked}")
    assert shown.error_name == "KeyError"
    assert "the bottom" in shown.traceback
    assert f"-> 2 {asked}" in shown.traceback
    assert "(the middle of a recursion is left out; %tb has every frame)" in shown.traceback
    assert shown.traceback.count("--> 4     dive(depth - 1)") < 200
    kernel.ok("import sys, traceback")
    assert kernel.value("len(traceback.extract_tb(sys.last_traceback)) > 900") == "True"
