"""N-dimensional views of ranks. Pure: no I/O, no clock, nothing imported but the standard library.

From the bottom up, one noun a file:

    ndslice     NDSlice            ranks as offset, sizes and strides; axes have numbers, not names
    extent      Extent, Point      the named sizes of a mesh, and one place in it region      Region
    an NDSlice with named dims: which global ranks a mesh stands for shape       Shape
    the same view under the names that Monarch's programs use mesh_ops    MeshTrait          slice,
    split, flatten, rename, size: written once for every mesh runs        Runs               a list
    that keeps equal neighbours once and decodes when first read value_mesh  ValueMesh          one
    value for each rank of a mesh

Everything but `Runs` is immutable; `Runs` is safe to read from any thread.
"""

from monarch._src.shape.extent import Extent, Point
from monarch._src.shape.mesh_ops import MeshTrait
from monarch._src.shape.ndslice import NDSlice
from monarch._src.shape.region import Region, Selector
from monarch._src.shape.run_length import Runs
from monarch._src.shape.shape import Shape
from monarch._src.shape.value_mesh import ValueMesh

__all__ = [
    "Extent",
    "MeshTrait",
    "NDSlice",
    "Point",
    "Region",
    "Runs",
    "Selector",
    "Shape",
    "ValueMesh",
]
