"""The tree of a flame graph, and its picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from monarch._src.observe.flame_graph.state.samples import WAITS, of_mesh
from monarch._src.observe.flame_graph.state.tree import Tree, svg
from monarch._src.wire.messages import MeshSamples, StackFrame

SVG = "{http://www.w3.org/2000/svg}"
TRAIN = StackFrame("train", "/home/me/train.py", 10)
STEP = StackFrame("step", "/home/me/train.py", 20)
LOAD = StackFrame("load", "/home/me/data.py", 5)


def workers(ranks: int = 4, name: str = "workers", mesh: int = 1) -> MeshSamples:
    """Ranks that are in `step` alike; only the last one loads."""
    by_rank = {rank: {(TRAIN, STEP): 60, (TRAIN,): 40} for rank in range(ranks - 1)}
    last = {ranks - 1: {(TRAIN, STEP): 60, (TRAIN, LOAD): 20, (WAITS,): 20}}
    return of_mesh(mesh, name, ["gpus"], [ranks], {**by_rank, **last}, [])


def test_functions_are_ordered_by_their_own_samples_and_odd_ranks_are_named() -> None:
    assert Tree([workers()]).text().splitlines() == [
        "workers, 4 ranks",
        "  self  total  function",
        " 60.0%   60.0%  step (train.py:20), all ranks alike",
        " 30.0%   95.0%  train (train.py:10), all ranks alike",
        "  5.0%    5.0%  load (data.py:5), most in gpus=3",
        "  5.0%    5.0%  waits for calls, or awaits, most in gpus=3",
    ]


def test_waiting_in_the_standard_library_counts_for_the_function_that_waits() -> None:
    wait = StackFrame("Condition.wait", "/usr/lib/python3.11/threading.py", 327)
    add = StackFrame("at::add", "libtorch_cpu.so", 0)
    mesh = of_mesh(1, "w", [], [], {0: {(LOAD, wait): 8, (STEP, add): 1, (STEP,): 1}}, [])
    tree = Tree([mesh])
    assert [(one.frame, one.own) for one in tree.functions()] == [(LOAD, 8), (STEP, 2)]
    assert "Condition.wait" in tree.folded()


def test_a_recursive_function_is_counted_once_in_a_sample() -> None:
    mesh = of_mesh(1, "w", [], [], {0: {(STEP, STEP, STEP): 8, (STEP,): 2}}, [])
    (step,) = Tree([mesh]).functions()
    assert (step.samples, step.own) == (10, 10)


def test_folded_stacks_are_lines_that_other_tools_read() -> None:
    odd = StackFrame("a;b", "x.py", 1)
    mesh = of_mesh(1, "w", [], [], {0: {(TRAIN, odd): 2}, 1: {(TRAIN, odd): 1, (TRAIN,): 4}}, [])
    assert Tree([mesh]).folded() == (
        "train (train.py:10) 4\ntrain (train.py:10);a,b (x.py:1) 3\n"
    )  # fmt: skip
    assert Tree([]).folded() == ""


def test_a_mesh_of_several_hosts_is_one_and_several_meshes_have_a_bar_each() -> None:
    here = of_mesh(1, "workers", ["gpus"], [2], {0: {(STEP,): 1}}, [])
    there = of_mesh(1, "workers", ["gpus"], [2], {1: {(STEP,): 1}}, [])
    one = Tree([here, there])
    assert one.root.frame.name == "workers, 2 ranks"
    assert list(one.root.children) == [STEP]
    both = Tree([workers(), workers(2, "readers", 2)])
    assert both.root.frame.name == "workers, readers, 6 ranks"
    assert [frame.name for frame in both.root.children] == ["workers", "readers"]


def test_ranks_that_were_not_sampled_are_named_below() -> None:
    mesh = of_mesh(1, "workers", ["gpus"], [2], {0: {(STEP,): 1}}, [(1, "could not be sampled")])
    assert Tree([mesh]).text().splitlines()[-1] == "workers gpus=1: could not be sampled"
    nothing = of_mesh(1, "workers", ["gpus"], [2], {}, [(1, "could not be sampled")])
    assert Tree([nothing]).text() == "workers, 0 ranks\nworkers gpus=1: could not be sampled"
    assert "could not be sampled" in svg(Tree([nothing]), 800)


def test_no_samples_are_said() -> None:
    assert Tree([of_mesh(1, "w", [], [], {0: {}}, [])]).text() == "w, 1 rank\nno samples"


def bars(picture: str) -> dict[str, tuple[float, float, int, str]]:
    """Left edge, width, row and colour of each bar, by the first word of its tooltip."""
    found: dict[str, tuple[float, float, int, str]] = {}
    for group in ET.fromstring(picture).iter(f"{SVG}g"):
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None
        assert title.text
        assert rect is not None
        numbers = [float(rect.attrib[name]) for name in ("x", "width", "y")]
        key = title.text.split()[0].rstrip(",")
        found[key] = (numbers[0], numbers[1], int(numbers[2]) // 18, rect.attrib["fill"])
    return found


def test_bars_are_as_wide_as_their_share_and_lie_below_their_caller() -> None:
    found = bars(svg(Tree([workers()]), 1000))
    assert {name: (width + 0.5, row) for name, (_, width, row, _) in found.items()} == {
        "workers": (1000.0, 0),
        "train": (950.0, 1),
        "step": (600.0, 2),
        "load": (50.0, 2),
        "waits": (50.0, 1),
    }
    colours = {name: colour for name, (*_, colour) in found.items()}
    assert colours["train"] == colours["step"] == colours["workers"]
    assert len({colours["train"], colours["load"], colours["waits"]}) == 3


def test_a_hostile_name_stays_text() -> None:
    odd = StackFrame('</title><script>alert("1")</script>\x00', "a&b.py", 1)
    picture = svg(Tree([of_mesh(1, "<w>", [], [], {0: {(odd,): 1}}, [])]), 800)
    assert "<script" not in picture
    assert ET.fromstring(picture) is not None


def test_a_deep_recursion_is_bounded_in_the_picture() -> None:
    deep = tuple(StackFrame(f"f{at}", "a.py", at) for at in range(3000))
    picture = svg(Tree([of_mesh(1, "w", [], [], {0: {deep: 1}}, [])]), 800)
    assert len(bars(picture)) == 201
