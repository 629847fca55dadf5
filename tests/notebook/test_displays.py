"""What ranks display is shown in the cell that asked, as what it is."""

from __future__ import annotations

import pytest

from monarch_jupyter.cells.displays import BURST, RATE, Pace, tagged
from monarch_jupyter.ranks.display import bundle_of
from tests.notebook.kernel import Kernel, Shown

RICH = """
class Rich:
    def __init__(self, text):
        self.text = text
    def _repr_html_(self):
        return f"<b>{self.text}</b>"
    def __repr__(self):
        return f"Rich({self.text!r})"
"""


def kinds(shown: Shown) -> list[str]:
    """Outputs in their order."""
    return [kind for kind in shown.kinds if kind in ("stream", "display_data", "execute_result")]


def test_display_on_a_rank_shows_in_the_cell_by_rank(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    cell = f"%%monarch on workers\n{RICH}\ndisplay(Rich(rank))\nprint('after')"
    shown = kernel.ok(cell)
    found = {data["text/plain"]: data["text/html"] for data in shown.displays}
    assert sorted(found) == ["[gpus=0] Rich(0)", "[gpus=1] Rich(1)"]
    assert "<b>1</b>" in found["[gpus=1] Rich(1)"]
    assert "gpus=1" in found["[gpus=1] Rich(1)"]


def test_what_a_program_imports_as_display_from_ipython_shows_too(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    kernel.ok("%%monarch on workers\nimport sys\nassert 'IPython' not in sys.modules")
    imported = "from IPython.display import HTML, display"
    (data,) = kernel.ok(f"%%monarch on workers\n{imported}\ndisplay(HTML('<b>hi</b>'))").displays
    assert "<b>hi</b>" in data["text/html"]
    whole = "import IPython\nIPython.display.display(5)"
    (data,) = kernel.ok(f"%%monarch on workers\n{whole}").displays
    assert data["text/plain"] == "[gpus=0] 5"


def test_it_shows_while_the_cell_runs(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    cell = "%%monarch on workers\nimport time\ndisplay('now')\ntime.sleep(600)"
    for message in kernel.watch(cell):
        if message["msg_type"] == "display_data":
            assert message["content"]["data"]["text/plain"] == "[gpus=0] 'now'"
            kernel.manager.interrupt_kernel()


def test_an_actor_beside_the_cells_displays_too(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    kernel.ok("%%monarch on workers\nrank")
    kernel.ok(
        "from monarch.actor import Actor, endpoint\nclass A(Actor):\n    @endpoint\n"
        "    def show(self):\n        display({'loss': 1})\na = workers.spawn('a', A)"
    )
    kernel.ok("print('a cell between')")
    (data,) = kernel.ok("a.show.call().get();").displays
    assert data["text/plain"] == "[gpus=0] {'loss': 1}"


ACTOR = """
from monarch.actor import Actor, endpoint
class A(Actor):
    def __init__(self):
        display("begins")
    @endpoint
    def show(self):
        from IPython.display import HTML, display
        display(HTML("<b>hi</b>"))
        return 7
    @endpoint
    def plot(self):
        import matplotlib.pyplot as plt
        plt.plot([1, 2, 3])
        plt.show()
    @endpoint
    def fail(self):
        display("last")
        raise ValueError("no")
"""


def test_actors_display_before_any_cell_has_run_on_their_ranks(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    shown = kernel.ok(f"{ACTOR}a = workers.spawn('a', A)\na.initialized.get()")
    assert [data["text/plain"] for data in shown.displays] == ["[gpus=0..1] 'begins'"]
    shown = kernel.ok("a.show.call().get()")
    (data,) = shown.displays
    assert "<b>hi</b>" in data["text/html"]
    assert kinds(shown) == ["display_data", "execute_result"], "it stands above the cell's value"
    failed = kernel.run("a.fail.call().get()")
    assert "[gpus=0..1] 'last'" in failed.displays[0]["text/plain"]
    assert [k for k in failed.kinds if k in ("display_data", "error")][:2] == [
        "display_data",
        "error",
    ]


def test_actors_of_processes_that_a_program_spawns_display_too(kernel: Kernel) -> None:
    kernel.ok("from monarch.actor import this_host\nmesh = this_host().spawn_procs({'gpus': 4})")
    kernel.ok(f"{ACTOR}a = mesh.slice(gpus=slice(2, 4)).spawn('a', A)\na.initialized.get()")
    (data,) = kernel.ok("a.slice(gpus=1).show.call_one().get();").displays
    assert "gpus=3" in data["text/html"]


BOOT = """
from monarch.actor import Actor, current_rank, endpoint, this_host
class Rich:
    def __init__(self, text):
        self.text = text
    def _repr_html_(self):
        return f"<b>{self.text}</b>"
def boot():
    display(Rich(f"boots {current_rank().rank}"))
    from IPython.display import HTML, display as shows
    shows(HTML("<i>boots</i>"))
"""


def test_a_bootstrap_function_displays_in_the_cell_that_spawns(kernel: Kernel) -> None:
    kernel.ok(BOOT)
    shown = kernel.ok("p = this_host().spawn_procs({'gpus': 2}, boot, 'p')\np.initialized.get()")
    found = "".join(sorted(data["text/html"] for data in shown.displays))
    assert "<b>boots 0</b>" in found
    assert "<b>boots 1</b>" in found
    assert "gpus=1" in found
    assert found.count("<i>boots</i>") == 1, "alike, so shown once for both"


NESTED = """
class Below(Actor):
    def __init__(self, depth):
        self.below = None
        if depth:
            inner = this_host().spawn_procs({"r": 2}, boot, name=f"depth{depth}")
            self.below = inner.spawn("below", Below, depth - 1)
            self.below.initialized.get()
    @endpoint
    def show(self):
        if self.below is None:
            display(Rich("deep"))
        else:
            self.below.slice(r=1).show.call_one().get()
"""


def test_actors_that_were_spawned_by_actors_display_too(kernel: Kernel) -> None:
    kernel.ok(BOOT + NESTED)
    kernel.ok("p = this_host().spawn_procs(name='p')")
    shown = kernel.ok("a = p.spawn('a', Below, 2)\na.initialized.get()")
    found = "".join(data["text/html"] for data in shown.displays)
    assert "<b>boots 1</b>" in found
    (data,) = kernel.ok("a.show.call_one().get();").displays
    assert "<b>deep</b>" in data["text/html"]
    assert "r=1" in data["text/html"]


def test_what_plt_show_shows_on_a_rank_is_a_picture(kernel: Kernel) -> None:
    pytest.importorskip("matplotlib")
    kernel.ok(f"%monarch spawn workers gpus=1\n{ACTOR}a = workers.spawn('a', A)")
    kernel.ok("a.initialized.get()")
    (data,) = kernel.ok("a.plot.call().get();").displays
    assert "data:image/png;base64," in data["text/html"]


def test_who_displays_lives_on_where_nobody_shows_it(kernel: Kernel) -> None:
    kernel.ok(f"%monarch spawn workers gpus=1\n{ACTOR}a = workers.spawn('a', A)")
    kernel.ok("a.initialized.get()")
    kernel.ok("%unload_ext monarch_jupyter")
    assert kernel.ok("for _ in range(3): a.show.call_one().get()").displays == []
    kernel.ok("%load_ext monarch_jupyter")
    kernel.hold_output(60.0)
    assert kernel.value("a.show.call_one().get()") == "7"
    (data,) = kernel.ok("a.show.call_one().get();").displays
    assert "<b>hi</b>" in data["text/html"]


def test_a_data_frame_as_a_last_line_shows_as_a_table(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    shown = kernel.ok(f"%%monarch on workers\n{RICH}\nRich('same')")
    assert "<b>same</b>" in shown.result["text/html"]
    assert "Rich('same')" in shown.result["text/plain"]


WIDGETS = """
import ipywidgets as w
bar = w.FloatProgress(value=3, min=0, max=12, description="epochs")
display(w.HBox([w.HTML("<b>loss</b>"), bar, w.Label("a<b")]))
display(w.IntSlider(value=3, description="depth"))
"""


def test_a_widget_made_on_a_rank_is_shown_as_it_looks(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=1")
    form, slider = kernel.ok(f"%%monarch on workers\n{WIDGETS}").displays
    assert "<b>loss</b>" in form["text/html"]
    assert "epochs: <progress" in form["text/html"]
    assert "25% (3 of 12)" in form["text/html"]
    assert "<code>a&lt;b</code>" in form["text/html"]
    assert slider["text/plain"].startswith("[gpus=0] IntSlider(value=3")
    assert "depth: <code>3</code>" in slider["text/html"]
    assert all("widget-view" not in mime for data in (form, slider) for mime in data)


def test_what_ranks_display_alike_is_shown_once_for_all_of_them(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=4")
    cell = f"%%monarch on workers\n{RICH}\ndisplay(Rich('same'))\ndisplay(Rich(rank // 2))\nNone"
    shown = [data["text/plain"] for data in kernel.ok(cell).displays]
    assert shown[0] == "[gpus=0..3] Rich('same')"
    # Those of two ranks each wait for the others, who show something else.
    assert sorted(shown[1:]) == ["[gpus=0..1] Rich(0)", "[gpus=2..3] Rich(1)"]


def test_what_is_too_much_for_a_cell_is_counted_and_its_text_kept(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2")
    cell = f"%%monarch on workers\n{RICH}\nfor i in range(150):\n    display(Rich((rank, i)))"
    shown = kernel.ok(cell)
    assert sum("Rich" in data["text/plain"] for data in shown.displays) == 200
    notices = [
        m["content"]["data"]["text/plain"]
        for m in shown.messages
        if m["msg_type"] in ("display_data", "update_display_data")
        and "more displays" in m["content"]["data"]["text/plain"]
    ]
    assert notices[-1] == (
        "monarch: 100 more displays are not shown here; `%monarch logs workers` has their text"
    )
    kept = kernel.ok("%monarch logs workers --tail 100").stdout
    assert kept.count("Rich((") == 100


def test_a_burst_is_sent_at_once_and_the_rest_no_faster_than_servers_pass_on() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    assert pace.delay(BURST) == 0
    waited = pace.delay(RATE)
    assert waited == pytest.approx(1.0)
    now += waited + 1.0
    assert pace.delay(RATE) == pytest.approx(0.0)
    now += 1000.0
    assert pace.delay(10 * BURST) == 0, "what is larger than any burst goes when nothing else has"


def test_a_figure_is_a_picture_and_those_left_open_show_at_the_end(kernel: Kernel) -> None:
    pytest.importorskip("matplotlib")
    kernel.ok("%monarch spawn workers gpus=1")
    shown = kernel.ok(
        "%%monarch on workers\nimport matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nNone"
    )
    (data,) = shown.displays
    assert "data:image/png;base64," in data["text/html"]


class Figureless:
    """Shows itself in several ways, one of which is broken."""

    def _repr_html_(self) -> str:
        raise ValueError("broken")

    def _repr_png_(self) -> bytes:
        return b"\x89PNG"

    def _repr_mimebundle_(self) -> dict[str, object]:
        return {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "as told"}

    def __repr__(self) -> str:
        return "plain"


def test_a_form_that_is_broken_is_left_out_and_what_lives_elsewhere_too() -> None:
    assert bundle_of(Figureless()) == {"text/plain": "as told", "image/png": "iVBORw=="}
    assert bundle_of(Figureless) == {"text/plain": repr(Figureless)}


def test_a_picture_names_its_rank_and_says_in_words_what_it_is() -> None:
    data = tagged("gpus=3", {"text/plain": "<a plot>", "image/png": "iVBORw=="})
    assert data["text/plain"] == "[gpus=3] <a plot>"
    assert 'alt="&lt;a plot&gt;"' in data["text/html"]
    assert "[gpus=3]" in data["text/html"]


def test_markdown_stays_markdown() -> None:
    data = tagged("gpus=3", {"text/plain": "x", "text/markdown": "**bold**"})
    assert data["text/markdown"] == "[gpus=3]\n\n**bold**"
