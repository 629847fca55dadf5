"""Flame graphs: in which functions ranks spend their time, and which ranks differ."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Future, ProcMesh
from monarch.observe import FlameGraph, flame_graph
from tests.conftest import Faults
from tests.integration.commands import monarch
from tests.integration.failing_actors import Faulty
from tests.integration.gates import GateKeeper, gate_in
from tests.integration.observe.test_stacks import shown

WAITS = "waits for calls, or awaits"
HOLD, PASS = shown("Faulty.hold_on"), shown("Gate.pass_through")


@pytest.fixture
def mesh(spawn_procs: Callable[..., ProcMesh]) -> ProcMesh:
    procs = spawn_procs({"gpus": 4}, name="workers")
    procs.initialized.get()
    return procs


@pytest.fixture
def held(mesh: ProcMesh, tmp_path: Path) -> Iterator[ProcMesh]:
    """The mesh; its rank 2 waits at a gate within an endpoint, the others wait for calls."""
    with gate_in(tmp_path) as keeper:
        answer = hold(mesh, keeper)
        yield mesh
        keeper.open()
        answer.get()


def hold(mesh: ProcMesh, keeper: GateKeeper) -> Future[Any]:
    answer = mesh.spawn("faulty", Faulty).hold_on.call([2], keeper.gate)
    keeper.wait_entered()
    return answer


def rows_of(graph: FlameGraph) -> dict[str, str]:
    """The ranks of each function, by its name."""
    rows = [line.split("  ")[-1] for line in str(graph).splitlines()[2:]]
    return {row.partition(" (")[0].partition(",")[0]: row.rpartition(", ")[2] for row in rows}


def test_the_function_in_which_one_rank_waits_names_that_rank(held: ProcMesh) -> None:
    graph = flame_graph(held, seconds=1)
    assert str(graph).splitlines()[0] == "workers, 4 ranks, 1 s, 100 samples a second"
    assert rows_of(graph)[PASS] == "most in gpus=2"
    stacks = dict(line.rsplit(" ", 1) for line in graph.folded().splitlines())
    (inside,) = [stack for stack in stacks if stack.rpartition(";")[2].startswith(PASS)]
    assert inside.split(" (")[0] == HOLD
    assert "_src" not in graph.folded()
    assert set(stacks) <= {inside, inside.rpartition(";")[0], "waits for calls, or awaits"}
    # Each rank has as many samples as another, of which a busy machine may miss some.
    assert graph.samples > 0
    assert graph.unread == ()


def test_a_slice_and_all_meshes_can_be_sampled(held: ProcMesh) -> None:
    one = flame_graph(held.slice(gpus=2), seconds=1, rate=50)
    assert str(one).splitlines()[0] == "workers, 1 rank, 1 s, 50 samples a second"
    assert PASS in one.folded()
    other = flame_graph(held.slice(gpus=0), seconds=1)
    assert other.folded().startswith(f"{WAITS} ")
    assert repr(flame_graph(seconds=1)).startswith("<FlameGraph: workers, 4 ranks, ")


def test_the_picture_is_valid_and_is_saved_by_the_end_of_its_name(
    held: ProcMesh, tmp_path: Path
) -> None:
    graph = flame_graph(held, seconds=1)
    picture = ET.parse(graph.save(tmp_path / "flame.svg")).getroot()
    tips = [title.text or "" for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert any(tip.startswith(PASS) and "most in gpus=2" in tip for tip in tips)
    assert graph.save(tmp_path / "flame.folded").read_text() == graph.folded()


def test_functions_of_c_are_included_on_request(held: ProcMesh) -> None:
    plain, native = (
        flame_graph(held.slice(gpus=2), seconds=1, native=native) for native in (False, True)
    )
    assert ".so" not in plain.folded()
    if sys.platform == "linux":
        assert ".so" in native.folded()


def test_nothing_to_sample_is_no_error() -> None:
    assert str(flame_graph(seconds=1)) == "0 ranks, 1 s, 100 samples a second"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seconds": 0}, "seconds is a whole number from 1 to 300, not 0"),
        ({"seconds": 1.5}, "seconds is a whole number from 1 to 300, not 1.5"),
        ({"rate": 5000}, "rate is a whole number from 1 to 1000, not 5000"),
    ],
)
def test_what_is_out_of_range_is_refused_before_anything_is_sampled(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        flame_graph(**options)


def test_a_rank_that_has_died_is_named(mesh: ProcMesh, faults: Faults) -> None:
    mesh.spawn("faulty", Faulty).slice(gpus=1).exit_hard.call_one(3).exception(timeout=60)
    faults.take()
    graph = flame_graph(mesh, seconds=1)
    assert graph.unread == ("workers gpus=1: it has no process yet, or no more",)


def test_the_command_prints_functions_and_writes_the_graph(
    held: ProcMesh, own_base_directory: Path, tmp_path: Path
) -> None:
    here = ("--in", str(own_base_directory), "--time", "1s")
    status, out, err = monarch("flame", *here, "workers", "-o", str(tmp_path / "a.svg"))
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "workers, 4 ranks, 1 s, 100 samples a second"
    assert out.splitlines()[-1] == f"wrote {tmp_path / 'a.svg'}"
    assert ET.parse(tmp_path / "a.svg").getroot() is not None
    status, out, err = monarch("flame", *here, "nobody")
    assert (status, out) == (1, "")
    assert err.startswith("monarch flame: there is no session or mesh 'nobody'; meshes: workers")
    status, out, err = monarch("flame", *here, "--rate", "0")
    assert (status, err) == (1, "monarch flame: rate is a whole number from 1 to 1000, not 0\n")
    status, out, err = monarch("flame", *here, "-o", os.path.join(tmp_path, "none", "a.svg"))
    assert (status, out.splitlines()[0].split(",")[0]) == (1, "workers")
    assert "No such file or directory" in err
