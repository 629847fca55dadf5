"""The elastic environment of a rank, from its point."""

from __future__ import annotations

import pytest

from monarch._src.shape import Extent
from monarch._src.spmd.actor import elastic_variables, position_of, visible_devices


def test_a_rank_has_the_variables_that_torchrun_sets() -> None:
    point = Extent(("hosts", "gpus"), (3, 4)).point_of_rank(6)
    assert elastic_variables(position_of(point), "trainer-0", 4711) == {
        "MASTER_ADDR": "trainer-0", "MASTER_PORT": "4711",
        "RANK": "6", "WORLD_SIZE": "12", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "3",
        "ROLE_RANK": "6", "ROLE_WORLD_SIZE": "12", "ROLE_NAME": "rank",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "monarch", "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip


def test_a_mesh_without_dims_is_one_rank_of_one() -> None:
    place = position_of(Extent((), ()).point_of_rank(0))
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("own", "rank", "expected"),
    [
        ("2", 2, "0,1,2,3"),
        ("6", 6, "4,5,6,7"),
        ("6", 2, "4,5,6,7"),
        (None, 2, None),
        ("0,1,2,3", 2, None),
        ("GPU-4f0e", 2, None),
        ("0", 2, None),
    ],
)
def test_a_program_finds_its_own_device_at_its_local_rank(
    own: str | None, rank: int, expected: str | None
) -> None:
    place = position_of(Extent(("hosts", "gpus"), (2, 4)).point_of_rank(rank))
    assert visible_devices(own, place) == expected
