"""Views of a slice show the coordinates of the mesh that it was cut from."""

from __future__ import annotations

import pytest

from monarch_jupyter.rendering.values import value_mesh_html, value_mesh_text
from tests.notebook.kernel import Kernel
from tests.notebook.reader import Reader

ACTOR = """
from monarch.actor import Actor, context, endpoint
class Teller(Actor):
    @endpoint
    def place(self):
        return context().actor_instance.rank.rank
tellers = w.spawn('tellers', Teller)
"""


@pytest.fixture
def mesh(kernel: Kernel) -> Kernel:
    kernel.ok("%monarch spawn w hosts=2 gpus=4")
    return kernel


def test_lines_and_values_of_a_cell_on_a_slice_have_the_same_coordinates(mesh: Kernel) -> None:
    shown = mesh.ok("%%monarch on w[gpus=2:4]\nprint('here', rank)\nrank")
    assert "[hosts=0 gpus=2] here 2" in shown.stdout
    assert shown.result["text/plain"].splitlines() == [
        "ValueMesh {hosts: 2, gpus: 2}",
        "           gpus=2  gpus=3",
        "  hosts=0  2       3",
        "  hosts=1  6       7",
    ]
    read = Reader(shown.result["text/html"]).text
    assert "lowest 2 at hosts=0 gpus=2; highest 7 at hosts=1 gpus=3" in read


def test_a_dim_that_a_slice_drops_is_named(mesh: Kernel) -> None:
    shown = mesh.ok("%%monarch on w[hosts=1, gpus=1:4:2]\nf'rank {rank}'")
    assert shown.result["text/plain"].splitlines() == [
        "ValueMesh {gpus: 2} at hosts=1",
        "  hosts=1 gpus=1  'rank 5'",
        "  hosts=1 gpus=3  'rank 7'",
    ]


def test_values_of_actors_keep_their_coordinates_when_they_are_sliced_and_pickled(
    mesh: Kernel,
) -> None:
    mesh.ok(ACTOR)
    mesh.ok("values = tellers.slice(gpus=slice(2, 4)).place.call().get()")
    expected = ["ValueMesh {gpus: 2} at hosts=1", "  gpus=2  gpus=3", "  6       7"]
    for code in ("values.slice(hosts=1)", "import pickle\npickle.loads(pickle.dumps(_))"):
        assert mesh.ok(code).result["text/plain"].splitlines() == expected
    mesh.ok("future = tellers.slice(hosts=1, gpus=3).place.call()\nfuture.get()")
    assert "hosts=1 gpus=3  7" in mesh.ok("future").result["text/plain"]
    # The interface of a ValueMesh is that of the slice.
    assert mesh.value("values.item(hosts=1, gpus=0)") == "6"


def test_the_live_grid_of_a_slice_has_its_coordinates(mesh: Kernel) -> None:
    mesh.ok(f"{ACTOR}\nvalues = tellers.slice(gpus=slice(2, 4)).place.call().get()")
    shown = mesh.ok("grid = __import__('monarch_jupyter').value_grid(values)\ngrid").result
    assert "gpus=2  gpus=3" in shown["text/plain"]
    sent = mesh.value("[grid.current()[field] for field in ('dims', 'indices', 'fixed')]")
    assert sent == "[['hosts', 'gpus'], {'hosts': [0, 1], 'gpus': [2, 3]}, {}]"


def test_slices_of_meshes_name_their_ranks(mesh: Kernel) -> None:
    mesh.ok(ACTOR)
    part = mesh.ok("w.slice(gpus=slice(2, 4))").result
    assert part["text/plain"] == "w {hosts: 2, gpus: 2}, its ranks hosts=0..1 gpus=2..3"
    assert "its ranks hosts=0..1 gpus=2..3" in part["text/html"]
    part = mesh.ok("tellers.slice(hosts=1, gpus=slice(1, 4, 2))").result
    assert part["text/plain"] == "tellers {gpus: 2}: Teller on w, hosts=1 gpus=1,3"
    assert mesh.ok("tellers").result["text/plain"] == "tellers {hosts: 2, gpus: 4}: Teller on w"


def test_dims_of_its_own_keep_their_own_coordinates(mesh: Kernel) -> None:
    mesh.ok(ACTOR)
    shown = mesh.ok("tellers.rename(gpus='tp').slice(hosts=1).place.call().get()").result
    assert shown["text/plain"].splitlines()[1] == "  tp=0  tp=1  tp=2  tp=3"


def test_the_spread_of_a_large_slice_names_ranks_of_its_mesh() -> None:
    from monarch._src.shape import Extent, ValueMesh

    extent = Extent(("hosts", "gpus"), (4, 1024))
    region = extent.region.slice(hosts=slice(2, 4))
    values = ValueMesh.from_encoded(region, range(2048), lambda value: value, extent)
    text = value_mesh_text(values)
    assert "0 at hosts=2 gpus=0" in text
    assert "hosts=3  1024 at hosts=3 gpus=0" in text
    assert "hosts=0" not in text + Reader(value_mesh_html(values)).text
