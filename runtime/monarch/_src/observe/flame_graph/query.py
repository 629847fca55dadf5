"""Flame graphs of ranks: in which functions all of them, or a few of them, spend their time.

Runs in: the client, any thread. Host agents run py-spy, which reads ranks from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from monarch._src.actor.endpoint import Actor
from monarch._src.errors import StacksError
from monarch._src.mesh.actor_mesh import ActorMesh
from monarch._src.mesh.client import current_session
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.mesh.selected_procs import procs_of
from monarch._src.observe.flame_graph.state import tree
from monarch._src.observe.flame_graph.state.samples import MOST_RATE, MOST_SECONDS
from monarch._src.observe.flame_graph.state.tree import Tree, file_name
from monarch._src.observe.stacks.query import owned_procs
from monarch._src.wire.messages import MeshSamples, SampleStacks

ANSWER_S = 45.0  # added to the time for sampling
WIDTH = 1200


class FlameGraph:
    """Sampled stacks of the ranks of some meshes, over a time, as one graph.

    `str()` shows the functions with the most samples; a notebook shows the picture.

    Attributes:
        seconds: how long the ranks were sampled.
        rate: samples of each rank in a second.
        samples: the samples of all ranks together.
        unread: a sentence for each rank that was not sampled.
    """

    def __init__(self, meshes: Sequence[MeshSamples], seconds: int, rate: int) -> None:
        self._tree = Tree(meshes)
        self.seconds = seconds
        self.rate = rate
        self.samples = self._tree.root.samples
        self.unread = tuple(self._tree.unread)

    def folded(self) -> str:
        """A line for each stack, `outermost;...;innermost count`.

        speedscope.app and flamegraph.pl read this format.
        """
        return self._tree.folded()

    def svg(self, width: int = WIDTH, name_file: Callable[[str], str] = file_name) -> str:
        """The picture, `width` pixels wide. The tooltip of a bar has its share and its ranks.

        `name_file` gives the name that is shown for a path; by default its last part.
        """
        return tree.svg(self._tree, width, name_file)

    def text(self, name_file: Callable[[str], str] = file_name) -> str:
        """The functions with the most samples of their own, a line each; see `svg`."""
        head, *rows = self._tree.text(name_file).splitlines()
        return "\n".join([f"{head}, {self.seconds} s, {self.rate} samples a second", *rows])

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file that ends in `.svg`, or the folded stacks to any other."""
        path = Path(path)
        path.write_text(self.svg() if path.suffix == ".svg" else self.folded(), encoding="utf-8")
        return path

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<FlameGraph: {self._tree.root.frame.name}, {self.samples} samples>"


def flame_graph(
    mesh: ProcMesh | ActorMesh | Actor | None = None,
    *,
    seconds: int = 5,
    rate: int = 100,
    threads: bool = False,
    native: bool = False,
    nonblocking: bool = False,
) -> FlameGraph:
    """Sample the stacks of ranks for some seconds, by py-spy on their hosts.

    Time in which a rank waits counts as well, at the function that waits.

    Args:
        mesh: the mesh, or slice of a mesh, to sample; None: all meshes that this client owns. Of
            each host, the first 64 ranks are sampled.
        seconds: how long, 1 to 300.
        rate: samples of each rank in a second, 1 to 1000. py-spy pauses a rank for each, and
            computes beside it: at 100 a second a busy rank may run some per cent slower.
        threads: sample all threads of the user's code, not only those that run actors.
        native: include functions of C and C++ libraries.
        nonblocking: do not pause ranks, so that a stack may be read while it changes.

    Raises:
        ValueError: `seconds` or `rate` is out of range.
        StacksError: py-spy is not installed, or this system forbids reading; has the remedy.
        TimeoutError: a host agent did not answer.
        RuntimeError: the host agent has ended.
    """
    request = sample_request(
        seconds, rate, threads=threads, native=native, nonblocking=nonblocking
    )  # fmt: skip
    running = current_session()
    wanted = owned_procs() if mesh is None else [procs_of(mesh)]
    if running is None or not wanted:
        return FlameGraph((), seconds, rate)
    request.meshes = wanted
    answer = running.runtime.agent.sample_stacks(request).get(seconds + ANSWER_S)
    if answer.problem:
        raise StacksError(answer.problem)
    return FlameGraph(answer.meshes, seconds, rate)


def sample_request(
    seconds: int, rate: int, *, threads: bool, native: bool, nonblocking: bool
) -> SampleStacks:
    """The request for samples of all meshes.

    Raises:
        ValueError: `seconds` or `rate` is out of range.
    """
    _check_whole("seconds", seconds, MOST_SECONDS)
    _check_whole("rate", rate, MOST_RATE)
    return SampleStacks(1, [], seconds, rate, threads, native, nonblocking)


def _check_whole(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name} is a whole number from 1 to {most}, not {value!r}")
