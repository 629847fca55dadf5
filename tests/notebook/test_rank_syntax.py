"""`!command`, `%magic` and `name?` in cells on ranks, at the right lines, by rank."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_jupyter.actions.rank_syntax import python_of
from monarch_jupyter.ranks.shell import MagicError, RankShell, time_text
from tests.notebook.kernel import Kernel, by_rank

pytestmark = pytest.mark.slow
HEAD = "# %%monarch on workers\n"


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("x = 1\n", "x = 1\n"),
        ("!ls -l {x}\n", "get_ipython().system('ls -l {x}')\n"),
        ("if x:\n    y = !ls\n", "if x:\n    y = get_ipython().getoutput('ls')\n"),
        ("%timeit f()\n", "get_ipython().run_line_magic('timeit', 'f()')\n"),
        ("f?\n", "get_ipython().run_line_magic('pinfo', 'f')\n"),
        ("!ls \\\n  -l\nx\n", "get_ipython().system('ls    -l')\n\nx\n"),
    ],
)
def test_a_cell_is_rewritten_line_by_line(cell: str, python: str) -> None:
    assert python_of(HEAD + cell, "f") == HEAD + python


LINES = st.sampled_from(
    ["x = 1", "!ls", "!ls \\\n -a", "%pwd", "y = !ls \\\n -l \\\n -a", "f(1,\n  2)", "len?",
     '"""a\n!b\n%c"""', "# %debug", "", "if x:\n    %cd /\n    z = 2"]
)  # fmt: skip


@given(st.lists(LINES, max_size=8))
def test_each_statement_keeps_its_line(pieces: list[str]) -> None:
    cell = HEAD + "\n".join([*pieces, "last = 1"])
    found = python_of(cell, "f")
    assert len(found.splitlines()) == len(cell.splitlines())
    last = ast.parse(found).body[-1]
    assert last.lineno == len(cell.splitlines())


@pytest.mark.parametrize(
    ("cell", "line", "said"),
    [
        (
            "x = 1\n%load_ext foo\n",
            3,
            "%load_ext is the notebook's own; on ranks there are !command",
        ),
        ("%monarch ls\n", 2, "%monarch is the notebook's own"),
        ("%%html\n<b>\n", 2, "%%html is the notebook's own"),
        ("x = 1\n%%time\nx\n", 3, "%%time comes first in its cell"),
        ("%%time\n%debug\n", 3, "%debug is the notebook's own"),
    ],
)
def test_a_magic_that_ranks_do_not_have_is_refused_at_its_line(
    cell: str, line: int, said: str
) -> None:
    with pytest.raises(SyntaxError, match=re.escape(said)) as refused:
        python_of(HEAD + cell, "f")
    assert refused.value.lineno == line


def test_values_of_the_rank_go_into_commands_and_the_rest_is_left_to_the_shell() -> None:
    shell = RankShell({"x": 3, "names": ["a", "b"]})
    found = shell.getoutput("echo {x} {names[1]} $x $$x ${HOME:+set} {no}")
    assert found == ["3 b 3 set {no}"]  # the shell has no x
    assert (found.n, found.s) == (found[0], found[0])
    shell.system("exit 7")
    assert shell.user_ns["_exit_code"] == 7


def test_what_a_magic_does_not_take_is_said() -> None:
    shell = RankShell({})
    with pytest.raises(MagicError, match=r"ranks have no magic %who_ls; there are !command, name"):
        shell.run_line_magic("who_ls", "")
    with pytest.raises(MagicError, match="ranks have no windows"):
        shell.run_line_magic("matplotlib", "qt")
    with pytest.raises(MagicError, match="%timeit takes -n LOOPS, -r RUNS and a statement"):
        shell.run_line_magic("timeit", "-p 3")
    with pytest.raises(MagicError, match="nothing called nobody"):
        shell.run_line_magic("pinfo", "nobody")


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.0, "7 s"), (0.0456, "45.6 ms"), (1.23e-6, "1.23 µs"), (5e-9, "5 ns")]
)
def test_a_time_has_three_digits(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_commands_and_magics_run_on_the_ranks_and_show_their_output_by_rank(
    kernel: Kernel,
) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    shown = kernel.ok("%%monarch on workers\nx = 5\n!echo it is {x}; echo careful >&2\n%cd /\n%pwd")
    # A command of one rank may end long before that of another.
    assert by_rank(shown.stdout) == {0: ["it is 5", "/"], 1: ["it is 5", "/"]}
    assert by_rank(shown.stderr) == {0: ["careful"], 1: ["careful"]}
    assert kernel.value("_.values()") == "['/', '/']"
    shown = kernel.ok("%%monarch on workers[gpus=1]\n!echo one\nlines = !echo a; echo b\nlines")
    assert shown.stdout == "[gpus=1] one\n"
    assert kernel.value("list(_.values()[0])") == "['a', 'b']"
    assert "per loop" in kernel.ok("%%monarch on workers\n%timeit -n 1 -r 1 x").stdout
    shown = kernel.ok("%%monarch on workers\n%time x + 1")
    assert "Wall time" in shown.stdout
    assert kernel.value("_.values()") == "[6, 6]"
    shown = kernel.ok("%%monarch on workers\nlen?")
    assert [lines[0].endswith("len(obj, /)") for lines in by_rank(shown.stdout).values()] == [
        True
    ] * 2
    shown = kernel.ok("%%monarch on workers\n%%bash\necho from bash")
    assert by_rank(shown.stdout) == {0: ["from bash"], 1: ["from bash"]}


def test_errors_show_the_cell_as_it_was_written_at_its_lines(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    text = kernel.run("%%monarch on workers\n!true \\\n && true\n1 / 0").traceback
    assert "----> 4 1 / 0" in text
    assert "      2 !true \\" in text
    text = kernel.run("%%monarch on workers\nx = 1\n%time 1 / 0").traceback
    assert "----> 3 %time 1 / 0" in text
    assert "shell.py" not in text
    text = kernel.run("%%monarch on workers\n%%time\nx = 2\nx / 0").traceback
    assert "----> 4 x / 0" in text
    shown = kernel.run("%%monarch on workers\nseen = 1\n%debug")
    assert shown.error_name == "SyntaxError"
    assert "%debug is the notebook's own; on ranks there are !command" in shown.traceback
    kernel.ok("%%monarch on workers\n'seen' in dir()")
    assert kernel.value("_.values()") == "[False]"


def test_a_command_ends_with_its_cell(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    said = kernel.refused("%%monarch on workers --timeout 0.5\nmark = 'slept'\n!sleep 12345")
    assert said.startswith("the cell has not ended within 0.5 s on gpus=0 of workers")
    found = kernel.ok("%%monarch on workers\n!pgrep -f 'sleep 1234[5]' | wc -l").stdout
    assert found == "[gpus=0] 0\n"
