"""N-dimensional views of ranks. Pure: no I/O, no clock, nothing imported but the standard library.

From the bottom up:

    ndslice     NDSlice            ranks as offset, sizes and strides; axes have numbers, not names
    extent      Extent, Point      the named sizes of a mesh, and one place in it
                Region             an NDSlice with named dims: the global ranks of a mesh
    shape       Shape              the same view under the names that Monarch's programs use
    mesh_ops    MeshTrait          slice, split, flatten, rename, size: written once for every mesh
                IndexedMesh        the same parts by position: procs[0], procs[-2:]
    run_length  Runs               a list that stores equal neighbours once and decodes lazily
    value_mesh  ValueMesh          one value for each rank of a mesh

Everything but `Runs` is immutable; any thread may read `Runs`.
"""

from monarch._src.shape.extent import Extent, Point, Region, Selector
from monarch._src.shape.mesh_ops import IndexedMesh, MeshTrait
from monarch._src.shape.ndslice import NDSlice
from monarch._src.shape.run_length import Runs
from monarch._src.shape.shape import Shape
from monarch._src.shape.value_mesh import ValueMesh

__all__ = [
    "Extent",
    "IndexedMesh",
    "MeshTrait",
    "NDSlice",
    "Point",
    "Region",
    "Runs",
    "Selector",
    "Shape",
    "ValueMesh",
]
