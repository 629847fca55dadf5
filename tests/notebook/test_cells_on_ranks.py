"""`%%monarch on`: cells that run on ranks."""

from __future__ import annotations

from tests.notebook.kernel import Kernel


def test_a_cell_runs_on_the_ranks_it_names_and_no_other(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok("%%monarch on workers[gpus=1:3]\nmark = rank")
    kernel.ok("%%monarch on workers\n'mark' in dir()")
    assert kernel.value("_.values()") == "[False, True, True, False]"
    kernel.ok("%%monarch on workers[gpus=3]\nrank, point['gpus'], point.size('gpus')")
    assert kernel.value("_.values()") == "[(3, 3, 4)]"


def test_names_stay_from_cell_to_cell_and_are_not_the_notebooks(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("%monarch spawn others gpus=1")
    kernel.ok("here = 'in the notebook'")
    kernel.ok("%%monarch on workers\ndef double(x):\n    return 2 * x\nhere = double(rank)")
    kernel.ok("%%monarch on workers\ndouble(here)")
    assert kernel.value("_.values()") == "[0, 4]"
    assert kernel.value("here") == "'in the notebook'"
    kernel.ok("%%monarch on others\n'here' in dir()")
    assert kernel.value("_.values()") == "[False]"


def test_the_last_expression_is_shown_and_bound(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    shown = kernel.ok("%%monarch on workers\nx = 3\nx + rank")
    assert shown.result["text/plain"].splitlines()[0] == "ValueMesh {gpus: 2}"
    assert "<table" in shown.result["text/html"]
    assert kernel.value("_.item(gpus=1)") == "4"


def test_a_cell_without_a_value_shows_none(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    for source in ("x = 1", "x = 1\nx;", "None", "# nothing at all"):
        assert kernel.ok(f"%%monarch on workers\n{source}").result == {}


def test_a_cell_may_await(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("%%monarch on workers\nimport asyncio\nawait asyncio.sleep(0, rank)")
    assert kernel.value("_.values()") == "[0, 1]"


def test_a_value_that_cannot_travel_is_shown_as_its_text(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    shown = kernel.ok("%%monarch on workers\n(i for i in range(3))").result["text/plain"]
    assert "<generator object" in shown
    assert "stays on its rank" in shown


def test_a_class_made_on_a_rank_pickles_there_and_travels_here(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    kernel.ok(
        "%%monarch on workers\nimport pickle\nclass Box:\n    def __init__(self, x):\n"
        "        self.x = x\npickle.loads(pickle.dumps(Box(5)))"
    )
    assert kernel.value("_.values()[0].x") == "5"


def test_a_syntax_error_is_found_before_anything_runs(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    shown = kernel.run("%%monarch on workers\nseen = True\nif:\n  pass")
    assert shown.error_name == "SyntaxError"
    assert "if:" in shown.traceback
    assert "magics.py" not in shown.traceback  # none of it has run
    kernel.ok("%%monarch on workers\n'seen' in dir()")
    assert kernel.value("_.values()") == "[False]"


def test_a_comment_may_stand_behind_the_ranks_it_names(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=3  # three, for a start")
    kernel.ok("%%monarch on workers[gpus=0:2]  # it's the first two\nrank")
    assert kernel.value("_.values()") == "[0, 1]"


def test_an_error_shows_the_cells_own_lines_with_the_cells_own_numbers(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=4")
    shown = kernel.run(
        "%%monarch on workers\ndef invert(x):\n    return 1 / x\n\ninvert(0 if rank > 1 else 1)"
    )
    assert shown.error_name == "ActorError"
    text = shown.traceback
    first, second, *_ = text.splitlines()
    assert first == (
        "ActorError: the cell on workers[gpus=2] raised ZeroDivisionError: division by zero"
    )
    assert second == "and on 1 more rank: gpus=3"
    assert "----> 5 invert(0 if rank > 1 else 1)" in text
    assert "----> 3     return 1 / x" in text
    assert "cell_runner.py" not in text
    assert "run_cell_magic" not in text


def test_ranks_live_on_after_an_error_and_after_exit(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("%%monarch on workers\nkept = rank")
    assert kernel.run("%%monarch on workers\n1/0").error_name == "ActorError"
    left = kernel.run("%%monarch on workers\nimport sys\nsys.exit(3)")
    assert "the cell asked its rank to exit (3); `%monarch stop` ends a mesh" in left.traceback
    assert "asked its rank to exit" in kernel.run("%%monarch on workers\nexit()").traceback
    assert "a rank has no keyboard" in kernel.run("%%monarch on workers\ninput()").traceback
    kernel.ok("%%monarch on workers\nkept")
    assert kernel.value("_.values()") == "[0, 1]"


def test_survivors_can_be_asked_when_a_rank_died_before_the_first_cell(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok(
        "from monarch.actor import Actor, endpoint\nclass Frail(Actor):\n"
        "    @endpoint\n    def die(self):\n        import os; os._exit(1)\n"
        "frail = workers.spawn('frail', Frail)"
    )
    assert kernel.run("frail.slice(gpus=0).die.call().get()").error_name == "SupervisionError"
    whole = kernel.run("%%monarch on workers\nrank")
    assert whole.error_name == "SupervisionError"
    assert "gpus=0" in whole.traceback
    kernel.ok("%%monarch on workers[gpus=1:3]\nkept = rank\nrank, point['gpus']")
    assert kernel.value("_.values()") == "[(1, 1), (2, 2)]"
    kernel.ok("%%monarch on workers[gpus=2:4]\nglobals().get('kept')")
    assert kernel.value("_.values()") == "[2, None]"


def test_a_part_of_a_mesh_held_in_a_variable_is_a_mesh_like_any_other(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers hosts=2 gpus=2")
    kernel.ok("%%monarch on workers\nkept = rank")
    kernel.ok("second = workers.slice(hosts=1)\nassert second.is_slice")
    kernel.ok("%%monarch on second\nkept, dict(point)")
    assert kernel.value("_.values()") == (
        "[(2, {'hosts': 1, 'gpus': 0}), (3, {'hosts': 1, 'gpus': 1})]"
    )
    kernel.ok("%%monarch on second[gpus=1]\nkept")
    assert kernel.value("_.values()") == "[3]"
    shown = kernel.run("%%monarch on second\nraise ValueError(rank)")
    assert (
        "the cell on workers[hosts=1, gpus=0] raised ValueError: 2\n"
        "and on 1 more rank, in other words:\n    hosts=1 gpus=1: 3\n"
    ) in shown.traceback


def test_so_is_a_whole_mesh_under_other_dims(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers hosts=2 gpus=2")
    kernel.ok("flat = workers.flatten('all')\nassert not flat.is_slice")
    kernel.ok("%%monarch on flat[all=1:3]\nrank")
    assert kernel.value("_.values(), _.sizes") == "([1, 2], {'all': 2})"
    kernel.ok("renamed = workers.rename(hosts='nodes')")
    kernel.ok("%%monarch on renamed[nodes=1]\nrank")
    assert kernel.value("_.values(), _.sizes") == "([2, 3], {'gpus': 2})"


def test_survivors_held_in_a_variable_can_be_asked_too(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok(
        "import os\nfrom monarch.actor import Actor, endpoint\nclass SelfEnding(Actor):\n"
        "    @endpoint\n    def quit(self):\n        os._exit(3)\n"
        "workers.slice(gpus=0).spawn('ending', SelfEnding).quit.call().exception()\n"
        "rest = workers.slice(gpus=slice(1, 4))"
    )
    kernel.ok("%%monarch on rest[gpus=1:3]\nkept = rank")
    kernel.ok("%%monarch on rest\nglobals().get('kept'), rank")
    assert kernel.value("_.values()") == "[(None, 1), (2, 2), (3, 3)]"
