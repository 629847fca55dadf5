"""Names of nodes, meshes and actors."""

from __future__ import annotations

import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monarch._src.wire.ids import AGENT, UidSource, parse_proc_node, proc_node

uids = st.integers(1, (1 << 63) - 1)


@given(mesh=uids, rank=st.integers(0, 1 << 16))
def test_the_name_of_a_proc_tells_its_mesh_and_rank(mesh: int, rank: int) -> None:
    assert parse_proc_node(proc_node(mesh, rank)) == (mesh, rank)


@given(st.text(alphabet="0123456789abcdefx._- +AF", max_size=12))
@example("5.01")
@example("05.1")
@example("0x5.1")
@example("5.-1")
@example(" 5.1")
@example("5.1_0")
@example("A.1")
def test_no_two_names_stand_for_one_proc(name: str) -> None:
    place = parse_proc_node(name)
    assert place is None or (proc_node(*place) == name and min(place) >= 0)


@pytest.mark.parametrize("name", [AGENT, "client-0a1b2c", "", ".", "5.", ".5", "5.x", "x.5"])
def test_other_nodes_are_no_procs(name: str) -> None:
    assert parse_proc_node(name) is None


@given(st.integers(0, (1 << 32) - 1))
def test_uids_are_positive_numbers_below_2_to_the_63_that_count_up(seed: int) -> None:
    source = UidSource(seed)
    made = [source() for _ in range(3)]
    assert made == [made[0], made[0] + 1, made[0] + 2]
    assert 0 < made[0] < 1 << 63


def test_two_processes_make_different_uids() -> None:
    assert {UidSource()() >> 32 for _ in range(50)} != {UidSource()() >> 32}


def test_threads_never_get_the_same_uid() -> None:
    source, made = UidSource(), list[list[int]]()
    threads = [
        threading.Thread(target=lambda: made.append([source() for _ in range(5000)]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len({uid for some in made for uid in some}) == 20_000
