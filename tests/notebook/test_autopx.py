"""`%monarch autopx`: every cell runs on ranks, until it is switched off."""

from __future__ import annotations

import pytest

from monarch_jupyter.magics.autopx import is_for_the_notebook
from tests.notebook.kernel import Kernel, Shown, by_rank
from tests.notebook.test_restarting_meshes import FRAIL

pytestmark = pytest.mark.slow
ON = (
    "autopx is on: cells run on workers (2 ranks) until `%monarch autopx off`; cells that begin "
    "with %monarch run in the notebook\n"
)


def here(kernel: Kernel, expression: str) -> str:
    """The text of an expression in the notebook's namespace, asked by a cell without a number."""
    shown = kernel.run(f"print({expression})", numbered=False)
    assert shown.status == "ok", shown.traceback
    return shown.stdout.strip()


def labels(shown: Shown) -> list[str]:
    """The lines with which cells say that they ran on ranks."""
    texts = [data["text/plain"] for data in shown.displays]
    return [text for text in texts if text.startswith("autopx")]


@pytest.mark.parametrize(
    ("cell", "is_so"),
    [
        ("%monarch ls\n", True),
        ("\n# a remark\n  %%monarch on workers\nx\n", True),
        ("\n  \n# nothing else\n", True),
        ("%monarchy\n", False),
        ("x = 1\n%monarch ls\n", False),
        ("%%time\n%monarch ls\n", False),
    ],
)
def test_a_cell_is_for_the_notebook_if_its_first_line_of_code_is_the_magic(
    cell: str, is_so: bool
) -> None:
    assert is_for_the_notebook(cell.splitlines(keepends=True)) == is_so


def test_every_cell_runs_on_the_ranks_until_autopx_is_switched_off(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2\nx = 'of the notebook'")
    assert kernel.ok("%monarch autopx").stdout == "autopx is off: cells run in the notebook\n"
    assert kernel.ok("%monarch autopx workers").stdout == ON
    assert kernel.ok("%monarch autopx").stdout == ON
    assert kernel.ok("%monarch autopx workers").stdout == ON.replace("is on:", "is on already:")
    shown = kernel.ok("\nx = 10 + rank\nprint('hello')\nx")
    assert shown.stdout == "[gpus=0..1] hello\n"
    assert labels(shown) == ["autopx: on workers (2 ranks)"]
    assert "autopx: on workers (2 ranks)" in shown.displays[0]["text/html"]
    assert here(kernel, "_.values()") == "[10, 11]"
    assert here(kernel, "x") == "of the notebook"
    shown = kernel.ok("!echo from {x}\nawait __import__('asyncio').sleep(0)\nx;")
    assert by_rank(shown.stdout) == {0: ["from 10"], 1: ["from 11"]}
    assert shown.result == {}
    shown = kernel.ok("# in the notebook\n%monarch ls\nprint(x)")
    assert (shown.stdout, labels(shown)) == ("of the notebook\n", [])
    assert kernel.ok("%monarch autopx workers[gpus=1]").stdout.startswith(
        "autopx is on: cells run on workers[gpus=1] (1 rank) until"
    )
    kernel.ok("rank")
    assert here(kernel, "_.values()") == "[1]"
    shown = kernel.ok("%monarch autopx off\nprint(x)")
    assert shown.stdout == "autopx is off: cells run in the notebook\nof the notebook\n"
    assert kernel.ok("x").result["text/plain"] == "'of the notebook'"


def test_errors_name_the_lines_of_the_cell_as_the_notebook_shows_it(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2\n%monarch autopx workers")
    text = kernel.run("\n\nx = 1\nx / 0").traceback
    assert text.splitlines()[0] == (
        "ActorError: the cell on workers[gpus=0] raised ZeroDivisionError: division by zero"
    )
    assert "----> 4 x / 0" in text
    assert "called from" not in text
    text = kernel.run("%%time\nx\nx / 0").traceback
    assert "----> 3 x / 0" in text
    assert kernel.run("x = 2\nif:\n  3").error_name == "SyntaxError"
    refused = kernel.run("x = 3\n%load_ext foo")
    assert refused.error_name == "SyntaxError"
    assert "%load_ext is the notebook's own; on ranks there are !command" in refused.traceback
    assert "; after `%monarch autopx off` cells run in the notebook" in refused.traceback
    kernel.ok("x")
    assert here(kernel, "_.values()") == "[1, 1]"


def test_stop_ends_a_cell_and_the_next_one_runs_on_the_ranks_too(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2\n%monarch autopx workers")
    shown = kernel.interrupt_when(
        "x = 7\nprint('began', flush=True)\nimport time\ntime.sleep(1000)", "began"
    )
    assert "monarch: interrupted; cancelled the cell on 2 ranks" in shown.stdout
    kernel.ok("x")
    assert here(kernel, "_.values()") == "[7, 7]"


def test_code_that_no_user_has_sent_as_a_cell_stays_in_the_kernel(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2\nx = 'of the notebook'\n%monarch autopx workers")
    assert kernel.run("%monarch ls\nget_ipython().run_cell('print(x)');").stdout.startswith(
        "of the notebook"
    )
    manager = "get_ipython().input_transformer_manager"
    assert here(kernel, f"{manager}.check_complete('for i in range(3):')[0]") == "incomplete"
    request = kernel.client.execute("x = 'written silently'", silent=True)
    while kernel.client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != request:
        pass
    assert here(kernel, "x") == "written silently"


def test_a_mesh_that_stops_ends_autopx_with_one_line(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2\n%monarch autopx workers")
    assert kernel.ok("%monarch stop workers").stdout == (
        "stopped workers: its 2 processes have ended\n"
        "monarch: autopx is off: workers has stopped; `%monarch spawn workers ...` makes a new "
        "one\n"
    )
    assert kernel.ok("1 + 1").result["text/plain"] == "2"


def test_a_cell_for_ranks_that_have_gone_meanwhile_is_refused_and_never_runs_here(
    kernel: Kernel,
) -> None:
    kernel.ok("%monarch spawn workers gpus=2\nran = False\n%monarch autopx workers")
    request = kernel.client.execute("workers.stop().get()", silent=True)
    while kernel.client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != request:
        pass
    assert kernel.refused("ran = True") == (
        "this cell has not run, and autopx is off: workers has stopped; `%monarch spawn workers "
        "...` makes a new one. Run the cell again to run it in the notebook"
    )
    assert kernel.value("ran") == "False"
    kernel.ok("ran = True")
    assert kernel.value("ran") == "True"


def test_autopx_outlives_the_death_of_some_ranks_and_ends_with_the_last(kernel: Kernel) -> None:
    kernel.ok(f"%monarch spawn workers gpus=2\n{FRAIL}\nfrail = workers.spawn('frail', Frail)")
    kernel.ok("%monarch autopx workers")
    died = kernel.run("import os\nif rank == 1: os._exit(3)")
    assert died.error_name == "SupervisionError"
    assert "%monarch restart workers[gpus=1]" in died.traceback
    kernel.ok("%monarch restart workers[gpus=1]")
    kernel.ok("rank")
    assert here(kernel, "_.values()") == "[0, 1]"
    died = kernel.run("import os\nos._exit(3)")
    assert died.error_name == "SupervisionError"
    # A rank may die a moment after the error of the first.
    over = died if "autopx is off" in died.stdout else kernel.run("%monarch ps")
    assert "monarch: autopx is off: all ranks of workers have died\n" in over.stdout
    assert kernel.refused("%monarch autopx workers") == (
        "autopx has no rank to run cells on: all ranks of workers have died"
    )


def test_a_mesh_of_which_there_is_none_and_a_typed_cell_are_refused(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    assert kernel.refused("%monarch autopx worker") == (
        "there is no mesh 'worker'; did you mean 'workers'?"
    )
    assert kernel.refused("%monarch autopx workers[gpus=4]").startswith("gpus=4 is outside workers")
    assert kernel.refused("%%monarch autopx workers\n1") == (
        "autopx takes no cell: write %monarch autopx workers, with a single %"
    )
    assert kernel.ok("1 + 1").result["text/plain"] == "2"
    assert kernel.complete("%monarch autopx ") == ["off", "workers", "-h"]
