"""Parts of meshes by position are meshes that can be called."""

from __future__ import annotations

import os

from monarch.actor import Actor, ProcMesh, endpoint


class Places(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


def pids(actors: Places) -> list[int]:
    return list(actors.pid.call().get().values())


def test_procs_and_actors_are_indexed_by_position(grid: ProcMesh) -> None:
    assert grid[1].sizes == {"gpus": 3}
    assert (grid[1, -1].name, grid[1, -1].sizes) == ("grid", {})
    actors = grid.spawn("places", Places)
    a, b, c, d, e, f = pids(actors)
    assert actors[-1, 0].pid.call_one().get() == d
    assert pids(actors[:, [0, 2]]) == [a, c, d, f]
    assert [pids(part) for part in actors] == [[a, b, c], [d, e, f]]
    assert pids(grid[0, ::2].spawn("part", Places)) == [a, c]


def test_the_values_of_a_call_are_a_dict_by_points(grid: ProcMesh) -> None:
    values = grid.spawn("places", Places).pid.call().get()
    assert dict(values.items())[values.extent.point(hosts=1, gpus=2)] == values[5]
