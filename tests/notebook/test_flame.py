"""`%monarch flame`: a picture, and the functions in text, with names of cells."""

from __future__ import annotations

from tests.notebook.kernel import Kernel
from tests.notebook.reader import Reader
from tests.notebook.test_stacks import HANG, OF


def test_the_picture_and_the_text_name_cells_and_odd_ranks(kernel: Kernel) -> None:
    # Before the mesh is made, which has the time for clean-up of then.
    kernel.ok("from monarch.config import configure; configure(cleanup_timeout='100ms')")
    kernel.ok("%monarch spawn workers gpus=4")
    kernel.ok(HANG)
    shown = kernel.ok("%monarch flame workers --time 1").result
    head, _, *rows = shown["text/plain"].splitlines()
    assert head == "workers, 4 ranks, 1 s, 100 samples a second"
    assert any(f"{OF}load (Cell In[" in row and row.endswith("most in gpus=3") for row in rows)
    assert "<svg" in shown["text/html"]
    assert f"{OF}reduce (Cell In[" in Reader(shown["text/html"]).text
    one = kernel.ok("import monarch_jupyter as mj; mj.flame('workers[gpus=3]', seconds=1)").result
    assert one["text/plain"].startswith("workers, 1 rank, 1 s")


def test_what_it_cannot_do_is_said_in_a_line(kernel: Kernel) -> None:
    assert kernel.ok("%monarch flame --time 1").result["text/plain"].startswith("0 ranks, 1 s")
    assert (
        kernel.refused("%monarch flame --time 1.5") == "--time 1.5: give a whole number from 1 up"
    )
    assert kernel.refused("%monarch flame --time 0").startswith("--time 0: give a whole number")
    assert kernel.refused("%monarch flame --time 301").startswith(
        "seconds is a whole number from 1"
    )
    assert kernel.refused("%monarch flame a b").startswith("flame takes one mesh or slice")
