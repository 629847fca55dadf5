"""One value a rank, live: what a page is told, and what a variable is followed by."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from monarch_jupyter.protocol.values import ValueTable, picture_of
from tests.notebook.kernel import Kernel
from tests.notebook.test_pages import PageComm

SIZES = {"hosts": 2, "gpus": 2}


class TestTable:
    def test_a_page_hears_all_values_first_and_then_those_that_are_others(self) -> None:
        table = ValueTable(picture_of(SIZES, [1, 2.5, 3, 4]))
        assert table.delta() is None
        assert table.snapshot() == {
            "type": "values",
            "seq": 0,
            "sizes": SIZES,
            "dims": ["hosts", "gpus"],
            "indices": {"hosts": [0, 1], "gpus": [0, 1]},
            "fixed": {},
            "numbers": [1, 2.5, 3, 4],
            "texts": ["1", "2.5", "3", "4"],
        }
        table.put(picture_of(SIZES, [1, 2.5, 0.1, 5]))
        assert table.delta() == {
            "type": "values_delta",
            "seq": 1,
            "ranks": [2, 3],
            "numbers": [0.1, 5],
            "texts": ["0.1", "5"],
        }
        assert table.delta() is None
        assert table.snapshot()["seq"] == 1

    def test_of_values_that_come_faster_than_they_are_told_the_last_counts(self) -> None:
        table = ValueTable(picture_of({"gpus": 1}, [0]))
        for number in (1, 2, 3):
            table.put(picture_of({"gpus": 1}, [number]))
        news = table.delta()
        assert news is not None
        assert (news["seq"], news["texts"]) == (1, ["3"])
        table.put(picture_of({"gpus": 1}, [3]))
        assert table.delta() is None

    @pytest.mark.parametrize(
        ("sizes", "values"),
        [({"gpus": 4}, [1, 2, 3, 4]), ({"gpus": 2, "hosts": 2}, [1, 2, 3, 4]), (SIZES, "abcd")],
        ids=["other dims", "the same dims in another order", "no numbers"],
    )
    def test_values_of_another_kind_are_told_whole(
        self, sizes: dict[str, int], values: list[object]
    ) -> None:
        table = ValueTable(picture_of(SIZES, [1, 2, 3, 4]))
        table.put(picture_of(sizes, values))
        news = table.delta()
        assert news is not None
        assert (news["type"], news["seq"]) == ("values", 1)

    def test_what_is_not_finite_has_a_text_and_no_number(self) -> None:
        picture = picture_of(SIZES, [math.nan, math.inf, -math.inf, 2**70])
        assert picture.texts == ("nan", "inf", "-inf", str(2**70))
        assert picture.numbers == (None, None, None, float(2**70))
        json.dumps(ValueTable(picture).snapshot(), allow_nan=False)

    def test_a_long_text_is_cut_and_says_so(self) -> None:
        (text,) = picture_of({}, ["x" * 1000]).texts
        assert len(text) < 500
        assert text.endswith(" … (1,002 characters)")


def opened(kernel: Kernel, code: str) -> tuple[PageComm, dict[str, Any]]:
    """Run a cell that shows a grid; the page's end of its comm, and what it shows at first."""
    shown = kernel.ok(code)
    result: Any = shown.result
    model = result["application/vnd.jupyter.widget-view+json"]["model_id"]
    opens = [m["content"] for m in shown.messages if m["msg_type"] == "comm_open"]
    state = next(c["data"]["state"] for c in opens if c["comm_id"] == model)
    return PageComm(kernel, model), state


def hear_until(page: PageComm, text: str) -> dict[str, Any]:
    """The first message in which a value is this."""
    while True:
        message = page.hear()
        if text in message.get("texts", ()):
            return message


VALUES = """
from monarch.actor import Extent, ValueMesh
def values(*numbers): return ValueMesh(Extent(["hosts", "gpus"], [2, 2]), numbers)
losses = values(0.5, 0.25, 0.125, 1.0)
"""


def test_show_of_a_variable_follows_it_from_cell_to_cell(kernel: Kernel) -> None:
    kernel.ok(VALUES)
    assert kernel.complete("%monarch show los") == ["losses"]
    page, state = opened(kernel, "%monarch show losses")
    assert (state["name"], state["first"]["numbers"]) == ("losses", [0.5, 0.25, 0.125, 1.0])
    kernel.client.execute("losses = values(0.5, 0.25, 0.0625, 1.0)")
    message = hear_until(page, "0.0625")
    if message["type"] == "values_delta":  # else it was among the first snapshots
        assert message["ranks"] == [2]
    # What can't be shown is said once.
    many = "ValueMesh(Extent(['gpus'], [5000]), range(5000))"
    said = kernel.ok(f"losses = {many}").stderr
    assert "losses no longer updates its grid: a value grid shows up to 4,096 values" in said
    assert kernel.ok("1").stderr == ""
    # Its static form is the picture of its values.
    kernel.ok("losses = values(1, 2, 3, 4)\n%monarch static on")
    shown = kernel.ok("%monarch show losses")
    kernel.ok("%monarch static off")
    assert "application/vnd.jupyter.widget-view+json" not in shown.result
    assert "lowest 1 at hosts=0 gpus=0" in shown.result["text/html"]
    assert "gpus=1" in shown.result["text/plain"]


def test_a_grid_is_brought_up_to_date_while_a_cell_runs(kernel: Kernel, tmp_path: Path) -> None:
    kernel.ok(VALUES)
    refused = kernel.run("import monarch_jupyter\nmonarch_jupyter.value_grid([1, 2])").traceback
    assert "shows a ValueMesh, as `trainers.loss.call().get()` gives, and not list" in refused
    page, state = opened(kernel, "grid = monarch_jupyter.value_grid(losses)\ngrid")
    assert state["name"] == ""
    enough = tmp_path / "enough"
    request = kernel.client.execute(
        f"import itertools, os\nfor step in itertools.count():\n"
        f"    grid.update(values(step, 0, 0, 0))\n"
        f"    if os.path.exists({str(enough)!r}): break"
    )
    seq = hear_until(page, "0")["seq"]
    numbers: list[float] = []
    while len(numbers) < 3:
        message = page.hear()
        if message["type"] == "values_delta":
            assert message["seq"] > seq
            seq = message["seq"]
            numbers.append(message["numbers"][0])
    assert numbers == sorted(set(numbers))
    enough.touch()
    assert kernel._reply(request)["status"] == "ok"
