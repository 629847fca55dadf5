"""`%monarch` in a real kernel: what each subcommand does, and what it says when it can't."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.notebook.kernel import Kernel

SUBCOMMANDS = [
    *(
        "spawn",
        "on",
        "ls",
        "ps",
        "show",
        "static",
        "stacks",
        "sql",
        "stop",
        "kill",
        "attach",
        "detach",
        "reap",
    ),
    *("torchrun", "logs", "update", "autoreload", "asyncio", "error", "explain", "doctor"),
]


def test_spawn_binds_the_mesh_and_shows_its_ranks(kernel: Kernel) -> None:
    shown = kernel.ok("%monarch spawn workers hosts=2 gpus=2")
    assert shown.result["text/plain"].startswith("workers {hosts: 2, gpus: 2} on ")
    assert "4 ranks" in shown.result["text/plain"]
    assert "workers hosts=1 gpus=0" in shown.result["text/html"]
    assert kernel.value("type(workers).__name__, workers.sizes") == (
        "('ProcMesh', {'hosts': 2, 'gpus': 2})"
    )


def test_spawn_without_dims_makes_one_rank(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn solo")
    assert kernel.value("len(solo), solo.sizes") == "(1, {})"


def test_spawn_sets_the_environment_and_imports_what_is_preloaded(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1 --preload fractions --env 'GREETING=good day'")
    kernel.ok(
        "%%monarch on workers\nimport os, sys\nos.environ['GREETING'], 'fractions' in sys.modules"
    )
    assert kernel.value("_.values()") == "[('good day', True)]"


def test_ls_lists_meshes_with_their_states(kernel: Kernel) -> None:
    assert "no meshes" in kernel.ok("%monarch ls").result["text/plain"]
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("%monarch spawn others gpus=1")
    head, *lines = kernel.ok("%monarch ls").result["text/plain"].splitlines()
    assert head.split() == ["mesh", "dims", "state", "ranks", "actors", "host", "age"]
    assert [line.split()[0] for line in lines] == ["workers", "others"]
    assert "ready  2: 2 idle" in lines[0]


CALLS = """
from monarch.actor import Actor, endpoint
class Trainer(Actor):
    @endpoint
    def step(self, number):
        return 100 // number
trainers = workers.spawn("trainers", Trainer)
for number in (1, 2, 0):
    answer = trainers.step.call(number)
    answer.exception()
"""


def test_ls_tells_what_was_counted_of_endpoints(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    assert "endpoint" not in kernel.ok("%monarch ls").result["text/plain"]
    kernel.ok(CALLS)
    shown = kernel.ok("%monarch ls").result
    _, endpoints = shown["text/plain"].split("\n\n")
    head, step, *_ = endpoints.splitlines()
    assert head.split()[:6] == ["mesh", "actor", "endpoint", "calls", "errors", "running"]
    assert step.split()[:6] == ["workers", "trainers", "Trainer.step", "6", "2", "0"]
    assert "<code>Trainer.step</code>" in shown["text/html"]
    whole = kernel.ok("%monarch ls --metrics").result["text/plain"].split("\n\n")[1]
    assert [line.split()[3:6] for line in whole.splitlines()] == [
        ["by", "calls", "errors"],
        ["ranks", "6", "2"],
        ["call", "3", "1"],
    ]
    kernel.ok("import monarch_jupyter as mj")
    assert kernel.value("[row.calls for row in mj.ls(metrics=True).metrics.endpoints]") == "[6, 3]"


MEASURES = """
from monarch.actor import Actor, endpoint, get_meter, span, traced
tokens = get_meter().create_counter("tokens")
@traced
def load(count):
    tokens.add(count, {"phase": "train"})
class Trainer(Actor):
    @endpoint
    def step(self):
        with span("prepare"):
            load(5)
workers.spawn("trainers", Trainer).step.call().get()
"""


def test_ls_tells_what_classes_of_cells_measured_on_ranks(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok(MEASURES)
    assert "tokens" not in kernel.ok("%monarch ls").result["text/plain"]
    shown = kernel.ok("%monarch ls --metrics").result
    _, _, spans, instruments = shown["text/plain"].split("\n\n")
    assert [line.split()[1:5] for line in spans.splitlines()[1:]] == [
        ["trainers", "prepare", "Trainer.step", "2"],
        ["trainers", "load", "prepare", "in"],
    ]
    assert instruments.splitlines()[1].split()[:6] == [
        "workers", "trainers", "tokens", "phase=train", "2", "10",
    ]  # fmt: skip
    assert "<code>tokens</code>" in shown["text/html"]


def test_show_is_a_widget_with_a_table_for_readers_without_widgets(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("%monarch spawn others gpus=1")
    every, one = kernel.ok("%monarch show").result, kernel.ok("%monarch show workers").result
    for shown in (every, one):
        assert "application/vnd.jupyter.widget-view+json" in shown
        assert "workers" in shown["text/plain"]
        assert "<table" in shown["text/html"]
    assert "others" in every["text/plain"]
    assert "others" not in one["text/plain"]


def test_stop_ends_the_processes_and_frees_the_name(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("%%monarch on workers\nimport os\nos.getpid()")
    pids = json.loads(kernel.value("_.values()"))
    stopped = kernel.ok("%monarch stop workers")
    assert stopped.stdout == "stopped workers: its 2 processes have ended\n"
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    kernel.ok("%monarch spawn workers gpus=1")


def test_stop_all_ends_every_mesh(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn a gpus=1")
    kernel.ok("%monarch spawn b gpus=1")
    stopped = kernel.ok("%monarch stop --all").stdout
    assert sorted(line.split(":")[0] for line in stopped.splitlines()) == ["stopped a", "stopped b"]
    assert kernel.ok("%monarch stop --all").stdout == "no meshes to stop\n"


def test_doctor_names_what_it_found_with_remedies_for_what_it_lacks(kernel: Kernel) -> None:
    shown = kernel.ok("%monarch doctor").result
    assert "python" in shown["text/plain"].lower()
    assert "<table" in shown["text/html"]


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_explains_itself(kernel: Kernel, name: str) -> None:
    shown = kernel.ok(f"%monarch {name} -h")
    first, second, *_ = shown.stdout.splitlines()
    assert f"monarch {name}" in first
    assert second.strip()


@pytest.mark.parametrize("line", ["%monarch", "%monarch -h", "%monarch --help"])
def test_monarch_alone_lists_its_subcommands(kernel: Kernel, line: str) -> None:
    text = kernel.ok(line).stdout
    for name in SUBCOMMANDS:
        assert f"monarch {name}" in text


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%monarch sapwn workers", "monarch has no subcommand 'sapwn'; did you mean 'spawn'?"),
        ("%monarch px", "monarch has no subcommand 'px'; there are spawn, on, autopx"),
        ("%monarch dance", "monarch has no subcommand 'dance'; there are spawn, on, autopx"),
        ("%monarch spawn workers gpus=0", "gpus=0 leaves workers without ranks"),
        ("%monarch spawn workers gpus=x", "gpus=x: 'x' is not a size; give a whole number"),
        ("%monarch spawn workers 8", "'8' is not a dim; write dim=N"),
        ("%monarch spawn taken gpus=1", "taken is already a variable (str), which spawn would"),
        ("%monarch spawn w gpus=1 --preload nosuch", "--preload nosuch: no module nosuch is"),
        ("%monarch spawn w gpus=99999", "99999 processes on one host; the most is"),
        ("%monarch ls workers", "ls takes no names; `%monarch show workers` shows a single mesh"),
        ("%monarch show nothing", "there is no mesh 'nothing'; make one with `%monarch spawn"),
        ("%monarch stop nothing", "there is no mesh 'nothing'; make one with `%monarch spawn"),
        ("%monarch stop", "stop needs the name of a mesh, or --all; there are no meshes"),
        ("%monarch stop a --all", "stop takes names or --all, not both"),
        ("%monarch on workers", "on runs a whole cell: write %%monarch, and the code below it"),
        ("%%monarch on workers", "on runs a whole cell: write %%monarch, and the code below it"),
        ("%%monarch on\n1", "on needs a mesh; for example `%%monarch on workers[gpus=0:4]`"),
        ("%%monarch ls\n1", "ls takes no cell: write %monarch ls, with a single %"),
        ("%%monarch on taken\n1", "taken is not a mesh but a str"),
        ("%monarch error", "the last error in this notebook did not"),
    ],
)
def test_a_line_that_cannot_be_done_is_one_line_with_the_remedy(
    kernel: Kernel, line: str, says: str
) -> None:
    kernel.ok("taken = 'a word'; import sys; sys.last_value = None")
    assert kernel.refused(line).startswith(says)
    assert kernel.value("taken") == "'a word'"
    assert "no meshes" in kernel.ok("%monarch ls").result["text/plain"]


def test_the_help_of_a_subcommand_for_cells_needs_no_cell(kernel: Kernel) -> None:
    assert kernel.ok("%%monarch on -h").stdout == kernel.ok("%monarch on -h").stdout
    assert kernel.ok("%%monarch").stdout == kernel.ok("%monarch").stdout


def test_the_name_of_a_mesh_in_place_of_a_subcommand_is_told_what_was_meant(
    kernel: Kernel,
) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    said = "monarch has no subcommand 'workers[gpus=1]', but a mesh; did you mean "
    on_ranks = kernel.refused("%%monarch workers[gpus=1]\nrank")
    assert on_ranks == f"{said}'%%monarch on workers[gpus=1]'?"
    assert kernel.refused("%monarch workers[gpus=1]") == f"{said}'%monarch show workers'?"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "%monarch spawn workers gpus=1",
            "workers is already a mesh; `%monarch stop workers` ends",
        ),
        ("%monarch show worker", "there is no mesh 'worker'; did you mean 'workers'?"),
        ("%monarch stop", "stop needs the name of a mesh, or --all; there is workers"),
        ("%monarch stop workers[gpus=1]", "workers[gpus=1] is a part of a mesh; this takes the"),
        ("%monarch restart workers[gpus=2]", "gpus=2 is outside workers, whose gpus go from 0"),
        ("%monarch restart wokers[gpus=1]", "there is no mesh 'wokers'; did you mean 'workers'?"),
        ("%monarch debug workers", "nothing waits at a breakpoint on workers; meshes are workers"),
        ("%monarch debug workers[gpus=0:1]", "nothing waits at a breakpoint on workers[gpus=0:1];"),
        ("%monarch debug worker", "nothing waits at a breakpoint on worker; meshes are workers"),
        ("%monarch stop workers nobody", "there is no mesh 'nobody'"),
        ("%%monarch on wokers\n1", "there is no mesh 'wokers'; did you mean 'workers'?"),
        ("%%monarch on workers[gpu=0]\n1", "workers has no dim 'gpu'; it has gpus; did you mean"),
        ("%%monarch on workers[gpus=2]\n1", "gpus=2 is outside workers, whose gpus go from 0 to 1"),
        ("%%monarch on workers[gpus]\n1", "'gpus' selects nothing; write dim=3 or dim=0:4"),
        ("%%monarch on workers\n  \n", "there is nothing to run on workers"),
    ],
)
def test_a_line_about_a_mesh_that_lives_leaves_it_alone_when_refused(
    kernel: Kernel, line: str, says: str
) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    assert kernel.refused(line).startswith(says)
    kernel.ok("%%monarch on workers\nrank")
    assert kernel.value("_.values()") == "[0, 1]"


def test_a_mesh_that_cannot_start_is_an_error_with_the_cause_and_leaves_nothing(
    kernel: Kernel,
) -> None:
    kernel.ok("%%writefile broken_at_import.py\nraise OSError('no such device')")
    shown = kernel.run("%monarch spawn unborn gpus=2 --preload broken_at_import")
    assert shown.error_name == "SupervisionError"
    assert "unborn" in shown.traceback
    assert "no such device" in shown.traceback
    assert "no meshes" in kernel.ok("%monarch ls").result["text/plain"]
    assert kernel.value("'unborn' in dir()") == "False"


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("%monarch sp", "spawn"),
        ("%monarch spawn new g", "gpus="),
        ("%monarch show wo", "workers"),
        ("%monarch stop --", "--all"),
        ("%%monarch on wo", "workers"),
        ("%%monarch on workers[", "gpus="),
        ("%monarch logs workers[g", "gpus="),
        ("%monarch spawn new gpus=2 --", "--keep"),
        ("%monarch stacks workers --", "--full"),
        ("%monarch attach some --", "--take"),
        ("part = workers.slice(", "gpus="),
    ],
)
def test_subcommands_options_dims_and_meshes_complete(
    kernel: Kernel, text: str, offered: str
) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    assert offered in kernel.complete(text)


def test_a_line_of_ours_completes_with_nothing_of_pythons(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers hosts=2 gpus=1")
    assert kernel.complete("%monarch spawn new --k") == ["--keep"]
    assert kernel.complete("%%monarch on workers[gpus=0, h") == ["hosts="]
    assert kernel.complete("%monarch stop workers --a") == ["--all"]
    kernel.ok("mine = 5")
    assert "bit_length" in kernel.complete("mine.bit"), "the rest of Python completes as ever"


def test_ps_lists_every_process_of_every_session(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    shown = kernel.ok("%monarch ps").result
    pids = kernel.value("[r.pid for r in __import__('monarch.observe').observe.snapshot()[0].rows]")
    mine = next(b for b in shown["text/plain"].split("\n\n") if "of this kernel" in b)
    head, columns, *rows = mine.splitlines()
    assert ": live, ends with its client, of this kernel, " in head
    assert columns.split() == ["mesh", "rank", "pid", "doing", "for", "messages", "memory"]
    assert [row.split()[:2] for row in rows] == [["workers", "gpus=0"], ["workers", "gpus=1"]]
    assert str([int(row.split()[2]) for row in rows]) == pids
    assert "<td" in shown["text/html"]
    assert "of this kernel" in shown["text/html"]
    assert "ls` lists" in kernel.refused("%monarch ps workers")


def test_explain_says_which_rank_has_failed_and_what_it_wrote_last(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    assert "nothing has failed" in kernel.ok("%monarch explain --no-stacks").result["text/plain"]
    kernel.run(
        "%%monarch on workers[gpus=1]\n"
        "import os, signal; print('last words', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    shown = kernel.ok("%monarch explain --no-stacks").result
    assert shown["text/plain"].startswith("VERDICT  workers[gpus=1] failed first: ")
    assert "last words" in shown["text/plain"]
    assert "<strong>workers[gpus=1] failed first" in shown["text/html"]
    assert "takes no names" in kernel.refused("%monarch explain workers")


def test_the_magics_are_functions_too(kernel: Kernel) -> None:
    kernel.ok("import monarch_jupyter as mj")
    kernel.ok("workers = mj.spawn('workers', {'gpus': 2})")
    assert "2 idle" in kernel.value("mj.ls()")
    assert kernel.value("mj.on(workers, 'rank + 1').values()") == "[1, 2]"
    assert kernel.value("mj.on('workers[gpus=1]', 'rank + 1').values()") == "[2]"
    assert kernel.value("mj.on(workers, 'x = 1')") == "None"
    assert "workers" in kernel.value("mj.show('workers')")
    assert kernel.value("mj.stop(workers)") == "['workers']"
    assert "python" in kernel.value("mj.doctor()").lower()
