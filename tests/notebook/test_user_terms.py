"""Errors, notices and views use the terms of the user, and no name of the runtime's own actors."""

from __future__ import annotations

import pytest

from tests.notebook.kernel import Kernel, Shown

INTERNAL = (
    *("get_ipython", "SPMDActor", "Cell.", "Map.", "Namespace", "GroupMember", "MapsItems"),
    *("run_source", "Script.", "Push", "Pull.", "Redirected", "RankReloader", "contextlib"),
)
DIES = "def dies(item):\n    import os\n    os._exit(3)\n"
VIEWS = (
    "%monarch ls --metrics",
    "%monarch ps",
    "%monarch stacks workers --full",
    "%monarch explain",
    "%%monarch sql\nSELECT * FROM actors",
    "%%monarch sql\nSELECT * FROM endpoints",
)


def told(shown: Shown) -> str:
    """All that a cell shows, without the frames behind a click, which are those of files."""
    texts = [data["text/plain"] for data in (*shown.displays, *shown.unfolded)]
    return "\n".join(
        [shown.stdout, shown.stderr, shown.traceback, *texts, shown.result.get("text/plain", "")]
    )


def check(text: str) -> str:
    assert [name for name in INTERNAL if name in text] == [], text
    return text


def test_a_mesh_of_which_ranks_have_died_is_told_of_in_the_users_terms(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=3")
    cell = "%%monarch on workers\nimport os\nif rank == 1: os._exit(3)\nimport time; time.sleep(60)"
    text = check(told(kernel.run(cell)))
    assert "died while it ran the cell: exited with status 3" in text
    for code, term in (
        ("workers.pull('x')", "the pull has not begun"),
        ("workers.push(x=1)", "the push has not begun"),
        ("workers.scatter(x=[1, 2, 3])", "the scatter has not begun"),
        ("workers.init_process_group()", "the process group has not begun"),
        ("%%monarch on workers\n1", "calls that include workers[gpus=1] raise"),
    ):
        text = check(told(kernel.run(code)))
        assert term in text
        assert "died earlier, while it ran the cell: exited with status 3" in text
        assert "\n%%monarch on workers[gpus=0]\n%%monarch on workers[gpus=2]\n" in text
    text = check(told(kernel.run(f"{DIES}workers.map(dies, range(4))")))
    assert "died while it ran the map: exited with status 3" in text
    assert "no rank of workers is left for the map, and 0 of 4 items are done. " in text
    assert "%%monarch on" not in text, "no rank is left for a cell either"
    for view in VIEWS:
        check(told(kernel.ok(view)))


def test_a_mesh_that_was_stopped_is_told_of_at_the_users_line(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1\nkept = workers\nworkers.stop().get()")
    for code in (
        "kept.pull('x')", "kept.push(x=1)", "kept.scatter(x=[1])", "kept.map(str, [1])",
        "list(kept.imap_unordered(str, [1]))", "kept.init_process_group()",
    ):  # fmt: skip
        shown = kernel.run(code)
        assert shown.error_name == "MeshStoppedError"
        text = check(told(shown))
        assert f"1 {code}\n\nMeshStoppedError: the proc mesh 'workers' has been stopped" in text


def test_values_that_cannot_be_rebuilt_are_told_of_in_the_users_terms(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    kernel.ok("class Bad:\n    def __reduce__(self):\n        return (int, ('x',))")
    assert "the push on workers[gpus=0] raised" in check(told(kernel.run("workers.push(b=Bad())")))
    code = "workers.scatter(b=[Bad(), Bad()])"
    assert "the scatter on workers[gpus=" in check(told(kernel.run(code)))
    kernel.ok("%%monarch on workers\nimport threading\nheld = threading.Lock()")
    assert "the pull on workers[gpus=0] raised" in check(told(kernel.run("workers.pull('held')")))
    kernel.ok("%%monarch on workers\npoint")
    assert kernel.value("[repr(one) for one in _.values()]") == (
        "[\"{'gpus': 0/2}\", \"{'gpus': 1/2}\"]"
    )


WAITS = "print('begun', flush=True)\nimport time\ntime.sleep(600)"


@pytest.mark.parametrize(
    ("code", "work", "magic"),
    [
        (f"%%monarch on workers\n{WAITS}", "the cell", "%%monarch on workers"),
        ("workers.map(waits, [1, 2])", "the map", ""),
        ("workers.push(x=Waits())", "the push", ""),
    ],
)
def test_the_stop_button_names_the_work_and_shows_the_line_as_it_was_written(
    kernel: Kernel, code: str, work: str, magic: str
) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    indented = WAITS.replace("\n", "\n    ")
    kernel.ok(
        f"def waits(item):\n    {indented}\n"
        "def begin():\n    waits(0)\n"
        "class Waits:\n    def __reduce__(self):\n        return (begin, ())"
    )
    shown = kernel.interrupt_when(code, "begun")
    assert shown.error_name == "KeyboardInterrupt"
    text = check(told(shown))
    assert f"cancelled {work} on 2 ranks" in text
    if magic:
        assert shown.traceback.strip() == f"KeyboardInterrupt in {magic}"
    else:
        assert f"----> 1 {code}" in shown.traceback
