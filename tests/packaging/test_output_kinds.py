"""`scripts/output_kinds.py`: kinds of outputs, and which of their differences count."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.output_kinds import Difference, are_the_same, complaint, differences, kinds_of


def stream(name: str, text: str = "x") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def shown(*mimes: str, how: str = "display_data") -> dict[str, Any]:
    return {"output_type": how, "data": dict.fromkeys(mimes, "x"), "metadata": {}}


def error(name: str) -> dict[str, Any]:
    return {"output_type": "error", "ename": name, "evalue": "x", "traceback": []}


def notebook(*cells: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Cells with these outputs; None is a cell of text."""
    made = [
        {"cell_type": "markdown"} if outputs is None else {"cell_type": "code", "outputs": outputs}
        for outputs in cells
    ]
    return {"cells": made}


OUT, ERR = "stream stdout", "stream stderr"
PLAIN, TABLE = "execute_result text/plain", "execute_result text/html text/plain"
PICTURE = "display_data image/png text/plain"


def test_a_kind_has_the_stream_the_mime_types_or_the_error_and_no_content() -> None:
    outputs = [
        stream("stdout", "1"), stream("stdout", "2"), stream("stderr"), stream("stdout", "3"),
        shown("text/plain", "image/png"), shown("text/plain", "text/html", how="execute_result"),
        error("ValueError"),
    ]  # fmt: skip
    assert kinds_of(outputs) == [OUT, ERR, OUT, PICTURE, TABLE, "error ValueError"]
    assert kinds_of([]) == []


def test_a_display_that_was_emptied_is_no_output_and_parts_no_stream() -> None:
    emptied = {"output_type": "display_data", "data": {"text/plain": ""}, "metadata": {}}
    assert kinds_of([stream("stdout"), emptied, stream("stdout")]) == [OUT]
    assert kinds_of([shown("text/plain")]) == ["display_data text/plain"]


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ([], []),
        ([OUT, PICTURE, TABLE], [PICTURE, OUT, TABLE]),
        ([OUT, PICTURE], [OUT, PICTURE, OUT]),
        ([OUT, ERR], [ERR, OUT, ERR]),
    ],
)
def test_where_and_in_how_many_pieces_text_arrives_makes_no_difference(
    stored: list[str], new: list[str]
) -> None:
    assert are_the_same(stored, new)
    assert are_the_same(new, stored)


def test_a_notice_on_stderr_may_or_may_not_come() -> None:
    assert are_the_same(["error ValueError"], ["error ValueError", ERR])
    assert are_the_same([ERR, PLAIN], [PLAIN])


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ([TABLE], [PLAIN]),
        ([PICTURE, PICTURE], [PICTURE]),
        ([PICTURE, TABLE], [TABLE, PICTURE]),
        (["error ValueError"], ["error KeyError"]),
        (["error ValueError"], [PLAIN]),
        ([OUT], [ERR]),
        ([OUT], []),
        ([OUT, PLAIN], [PLAIN]),
        ([], [OUT]),
    ],
)
def test_another_answer_picture_error_or_stream_is_a_difference(
    stored: list[str], new: list[str]
) -> None:
    assert not are_the_same(stored, new)
    assert not are_the_same(new, stored)


def test_cells_that_differ_are_named_by_their_place_among_all_cells() -> None:
    stored = notebook(None, [stream("stdout")], None, [shown("text/plain", how="execute_result")])
    new = notebook(None, [stream("stdout"), stream("stdout")], None, [error("KeyError")])
    assert list(differences(stored, stored)) == []
    assert list(differences(stored, new)) == [Difference(3, [PLAIN], ["error KeyError"])]


def test_a_complaint_names_notebook_cell_both_kinds_and_the_command_that_mends_it() -> None:
    assert complaint("notebooks/a.ipynb", [Difference(3, [OUT, PLAIN], [])]) == (
        "notebooks/a.ipynb: cell 3: new outputs are of other kinds than the stored ones\n"
        "cell 3\n"
        "  stored: stream stdout; execute_result text/plain\n"
        "  new:    none\n"
        "run `python scripts/execute_notebooks.py notebooks/a.ipynb`, and read what it has changed"
    )
