"""`%%monarch on w --push x --scatter batch --gather loss`, and `--timeout`."""

from __future__ import annotations

import pytest

from tests.notebook.kernel import Kernel


def test_variables_go_to_the_ranks_and_come_back_by_rank(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("import numpy\nbatch = numpy.arange(8).reshape(4, 2)\nscale, bias = 10, 1")
    shown = kernel.ok(
        "%%monarch on workers --push scale,bias --scatter batch --gather loss,batch\n"
        "loss = scale * int(batch.sum()) + bias\nrank"
    )
    assert shown.result["text/plain"].splitlines()[0] == "ValueMesh {gpus: 2}"
    assert kernel.value("_.values()") == "[0, 1]"
    assert kernel.value("loss.values()") == "[61, 221]"
    assert kernel.value("[part.tolist() for part in batch.values()]") == (
        "[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]"
    )


def test_names_stay_on_the_ranks_for_later_cells_and_methods(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("x = 3")
    kernel.ok("%%monarch on workers --push=x\nx")
    kernel.ok("workers.push(y=4)\nworkers.scatter(z=[5, 6])")
    kernel.ok("%%monarch on workers\nw = x + y + z[0]")
    assert kernel.value("workers.pull('w').values()") == "[12, 13]"


def test_a_push_before_the_first_cell_leaves_its_main_thread_to_the_cells(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("x = 1")
    kernel.ok(
        "%%monarch on workers --push x\nimport threading\n"
        "(x, rank, threading.current_thread() is threading.main_thread())"
    )
    assert kernel.value("_.values()") == "[(1, 0, True), (1, 1, True)]"


def test_a_slice_and_a_part_in_a_variable_take_their_own_parts(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers hosts=2 gpus=2")
    kernel.ok("batch = [1, 2, 3, 4]\nsecond = workers.slice(hosts=1)")
    kernel.ok("%%monarch on workers[hosts=0] --scatter batch\nbatch")
    assert kernel.value("_.values()") == "[[1, 2], [3, 4]]"
    kernel.ok("%%monarch on second[gpus=1] --scatter batch --gather batch\nbatch")
    assert kernel.value("batch.item()") == "[1, 2, 3, 4]"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            "--push lenght",
            "--push lenght: the notebook has no variable 'lenght'; did you mean 'length'?",
        ),
        (
            "--scatter zzzz",
            "--scatter zzzz: the notebook has no variable 'zzzz'; assign it in a cell first",
        ),
        (
            "--scatter length",
            (
                "scatter: length is of type int and has no rows: give an array, a tensor, a data "
                "frame or a list, or push all of it and let each rank take its own"
            ),
        ),
        (
            "--push lock",
            (
                "push: lock, a lock, cannot be sent to another process: cannot pickle "
                "'_thread.lock' object; make it on the rank: in `__init__` of the actor, or where "
                "it is first used"
            ),
        ),
        (
            "--push length, batch",
            "--push length,: write the names with commas and without spaces, as in --push x,y",
        ),
        ("--push 3x", "--push 3x: '3x' is not the name of a variable"),
        ("--gather a.b", "--gather a.b: 'a.b' is not the name of a variable"),
        ("--push rank", "push: each rank has a 'rank' of its own; choose another name"),
        (
            "--push batch --scatter batch",
            "--push and --scatter both have batch; choose one of them",
        ),
        ("--push", "--push needs a value; write --push NAMES"),
        ("--pusch x", "on has no option --pusch; did you mean 'push'?"),
        ("--timeout 0", "--timeout 0: give seconds above 0, or leave it out for no limit"),
        ("--timeout nan", "--timeout nan: give seconds above 0, or leave it out for no limit"),
        ("--timeout soon", "--timeout soon: give seconds, as in --timeout 30"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_and_nothing_has_run(
    kernel: Kernel, options: str, text: str
) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("import threading\nlength, batch, lock, rank = 1, [1, 2, 3], threading.Lock(), 0")
    assert kernel.refused(f"%%monarch on workers {options}\nran = True") == text
    kernel.ok("%%monarch on workers\n[n in globals() for n in ('ran', 'length', 'batch')]")
    assert kernel.value("_.values()") == "[[False, False, False], [False, False, False]]"


def test_a_syntax_error_sends_nothing(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1\nx = 1")
    assert kernel.run("%%monarch on workers --push x\nif:").error_name == "SyntaxError"
    assert "no rank of workers[gpus=0] has a name 'x'" in kernel.run("workers.pull('x')").traceback


def test_a_name_that_no_rank_has_is_told_after_the_cell(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    said = kernel.refused("%%monarch on workers --gather loss\nlosses = 1")
    assert said == (
        "the cell has run; pull: no rank of workers has a name 'loss'; did you mean 'losses'?"
    )
    said = kernel.refused("%%monarch on workers --gather only\nif rank:\n    only = 1")
    assert said == (
        "the cell has run; pull: gpus=0 of workers has no name 'only'; pull it from a slice"
    )


def test_a_cell_that_is_late_is_cancelled_and_the_ranks_are_named(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    said = kernel.refused(
        "%%monarch on workers --timeout 0.2\nimport time\nbefore = 1\n"
        "if rank == 1:\n    time.sleep(600)"
    )
    assert said == (
        "the cell has not ended within 0.2 s on gpus=1 of workers, and is cancelled there"
    )
    kernel.ok("%%monarch on workers --timeout 600\nbefore + rank")
    assert kernel.value("_.values()") == "[1, 2]"


def test_flags_and_variables_complete(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("batch_here, rate_here = [1, 2], 0.1")
    assert {"--push", "--scatter", "--gather", "--timeout"} <= set(
        kernel.complete("%%monarch on workers --")
    )
    assert kernel.complete("%%monarch on workers --push batch_h") == ["batch_here"]
    assert kernel.complete("%%monarch on workers --push batch_here,rate_h") == ["rate_here"]
    assert kernel.complete("%%monarch on workers --scatter=batch_h") == ["batch_here"]
    assert "workers" in kernel.complete("%%monarch on --push batch_here wor")


def test_help_tells_the_flags(kernel: Kernel) -> None:
    text = kernel.ok("%monarch on -h").stdout
    for flag in ("--push NAMES", "--scatter NAMES", "--gather NAMES", "--timeout SECONDS"):
        assert flag in text
    assert "%%monarch on workers --push model --scatter batch --gather loss" in text
