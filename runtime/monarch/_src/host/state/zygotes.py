"""Which zygote forks the procs of a mesh, and which modules zygotes import. No I/O.

The first zygote has imported only what every proc needs. When a client has imported torch, say, a
zygote is forked that imports torch too. The procs of later meshes are forked from that one and have
torch as they begin. Imports take seconds, during which the other zygotes go on forking. A mesh
waits for an import only if the client's program names the module.

A mesh is forked from the newest zygote that suits it. Its procs would import the modules of that
zygote from the same places, and the mesh sets no variable that those modules have read to another
value. If none suits, its procs are forked from the first zygote and import for themselves.

A module after which a zygote could not fork safely, or that cannot be imported, is given up for
this host. The zygote ends, and another is made without that module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from monarch._src.wire.messages import Imports

FIRST = 0
LONGEST_IMPORT_S = 120.0
"""How long the import of one module may take before it is given up, in seconds."""

# Variables that libraries read in C as they are loaded, which Python does not see. Each names one
# variable, or with an underscore at its end a family.
READ_IN_C = (
    "ATEN_", "BLIS_", "C10_", "DNNL_", "GLIBC_TUNABLES", "GOMP_", "GOTO_", "KINETO_", "KMP_",
    "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "NPY_", "NUMEXPR_", "OMP_", "ONEDNN_", "OPENBLAS_",
    "PYTORCH_", "TORCH_", "TZ", "VECLIB_",
)  # fmt: skip
# Read as a proc uses a device or the runtime, not as a module is imported. pytest sets its own for
# each test, and torch copies the whole environment.
READ_LATER = ("CUDA_VISIBLE_DEVICES", "MONARCH_", "PYTEST_CURRENT_TEST")

Environment: TypeAlias = "Mapping[str, str | None]"
"""Changes to the environment of the agent; None removes a variable."""
FindsAlike: TypeAlias = "Callable[[Collection[str], Sequence[str], Sequence[str]], bool]"
"""Whether modules are found in the same places along two import paths."""


class Make(msgspec.Struct, frozen=True):
    """Fork a zygote from `parent`, and have it import these modules."""

    parent: int
    zygote: int
    modules: tuple[str, ...]
    path: list[str]
    env: dict[str, str | None]


class StopZygote(msgspec.Struct, frozen=True):
    """End a zygote that was forked from `parent` and has no procs."""

    parent: int
    zygote: int


class AssignMesh(msgspec.Struct, frozen=True):
    """Fork the procs of that mesh from that zygote, from now on."""

    mesh: int
    zygote: int


Action: TypeAlias = Make | StopZygote | AssignMesh


class _Zygote(msgspec.Struct):
    number: int
    parent: int
    modules: frozenset[str]  # those of its parent too
    path: list[str]
    env: dict[str, str | None]
    reads: frozenset[str]
    progress_at: float  # when it last began to import a module
    module: str = ""  # the one that it imports now
    is_ready: bool = False


class _Held(msgspec.Struct):
    """A mesh that waits for a zygote."""

    imports: Imports
    envs: list[dict[str, str | None]]
    until: float


class Zygotes:
    """The zygotes of a host. Times are those of one monotonic clock, in seconds."""

    def __init__(self, environment: Mapping[str, str], finds_alike: FindsAlike) -> None:
        """`environment` is the agent's, which the zygotes share."""
        self._environment = environment
        self._finds_alike = finds_alike
        self._zygotes: dict[int, _Zygote] = {}  # without the first; the newest is the last
        self._made = FIRST
        self._wish: Imports | None = None
        self._held: dict[int, _Held] = {}
        self._places: dict[int, int] = {}
        self.given_up: dict[str, str] = {}
        """Modules that no zygote of this host imports any more, and why."""

    @property
    def importing(self) -> str:
        """The module that is being imported; empty if none is."""
        busy = self._busy()
        return "" if busy is None else busy.module

    def zygote_of(self, mesh: int) -> int | None:
        """The zygote that forks the procs of that mesh; None while the mesh waits for one."""
        return None if mesh in self._held else self._places.get(mesh, FIRST)

    def imports_asked(self, imports: Imports, now: float) -> list[Action]:
        """A client has imported these modules, and may spawn meshes that need them."""
        self._wish = imports
        return self._advance(now)

    def mesh_spawned(
        self,
        mesh: int,
        imports: Imports | None,
        envs: Sequence[Environment],
        now: float,
        wait_s: float,
    ) -> list[Action]:
        """Choose the zygote of a mesh, or hold the mesh for at most `wait_s`.

        `imports` is None for a mesh whose procs must import for themselves. `envs` has one entry
        for all ranks, one for each, or none.
        """
        if imports is None:
            self._places[mesh] = FIRST
            return [AssignMesh(mesh, FIRST)]
        self._wish = imports
        self._held[mesh] = _Held(imports, [dict(env) for env in envs] or [{}], now + wait_s)
        return self._advance(now)

    def waited_enough(self, mesh: int, now: float) -> list[Action]:
        """That mesh waits no longer: it is being stopped."""
        held = self._held.get(mesh)
        if held is not None:
            held.until = now
        return self._advance(now)

    def mesh_freed(self, mesh: int, now: float) -> list[Action]:
        """The mesh has ended, or waits for no import any more."""
        self._held.pop(mesh, None)
        self._places.pop(mesh, None)
        return self._advance(now)

    def import_began(self, zygote: int, module: str, now: float) -> None:
        """That zygote begins to import a module."""
        found = self._zygotes.get(zygote)
        if found is not None:
            found.module, found.progress_at = module, now

    def import_ended(self, zygote: int, reads: Collection[str], now: float) -> list[Action]:
        """That zygote has imported its modules, which have read these variables."""
        found = self._zygotes.get(zygote)
        if found is not None:
            found.is_ready, found.module = True, ""
            found.reads |= frozenset(reads)
        return self._advance(now)

    def zygote_lost(self, zygote: int, why: str, now: float) -> list[Action]:
        """That zygote has ended. The module that it was importing is given up, for that reason."""
        found = self._zygotes.pop(zygote, None)
        if found is None:
            return []
        parent = self._zygotes.get(found.parent)
        own = found.modules - (parent.modules if parent is not None else frozenset())
        for module in [found.module] if found.module else sorted(own):
            self.given_up[module] = why
        return self._advance(now)

    def has_meshes(self, zygote: int) -> bool:
        """Whether procs are forked from that zygote."""
        return zygote in self._places.values()

    def next_deadline(self) -> float | None:
        """When `time_passed` has something to do, or None."""
        busy = self._busy()
        times = [one.until for one in self._held.values()]
        if busy is not None:
            times.append(busy.progress_at + LONGEST_IMPORT_S)
        return min(times, default=None)

    def time_passed(self, now: float) -> list[Action]:
        """Give up an import that takes too long, and let meshes go that have waited long enough."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return []
        busy = self._busy()
        if busy is None or now < busy.progress_at + LONGEST_IMPORT_S:
            return self._advance(now)
        why = f"its import had not ended after {LONGEST_IMPORT_S:.0f} s"
        return [StopZygote(busy.parent, busy.number), *self.zygote_lost(busy.number, why, now)]

    def all_made(self) -> Iterator[StopZygote]:
        """How to end all zygotes but the first, the newest first."""
        for one in reversed(self._zygotes.values()):
            yield StopZygote(one.parent, one.number)

    # --- decisions ----------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for mesh, held in list(self._held.items()):
            zygote = self._choice(held, now)
            if zygote is not None:
                del self._held[mesh]
                self._places[mesh] = zygote
                actions.append(AssignMesh(mesh, zygote))
        if self._busy() is None:
            make = self._next_make()
            if make is not None:
                actions.append(make)
        actions += self._end_unused()
        return actions

    def _choice(self, held: _Held, now: float) -> int | None:
        """The zygote for a mesh; None to wait for one that is being made, or will be."""
        needed = self._allowed(held.imports.needed)
        made_for = self._made_for(held.imports, needed)
        if needed and made_for is None and now < held.until and self._would_suit(held):
            return None
        suiting = (one for one in reversed(self._zygotes.values()) if self._suits(one, held))
        found = next(suiting, None)
        return FIRST if found is None else found.number

    def _next_make(self) -> Make | None:
        """The zygote to make now: for meshes that wait, else for what clients have imported."""
        for held in self._held.values():
            return self._make(held.imports, self._allowed(held.imports.needed))
        if self._wish is not None:
            wanted = self._allowed(self._wish.modules)
            if wanted and self._made_for(self._wish, wanted) is None:
                return self._make(self._wish, wanted)
        return None

    def _make(self, imports: Imports, modules: Sequence[str]) -> Make:
        parent = self._made_for(imports, ())
        known: frozenset[str] = frozenset() if parent is None else parent.modules
        missing = tuple(module for module in modules if module not in known)
        self._made += 1
        number = FIRST if parent is None else parent.number
        self._zygotes[self._made] = _Zygote(
            self._made, number, known | set(missing), imports.path, imports.env,
            frozenset() if parent is None else parent.reads, float("inf"),
        )  # fmt: skip
        return Make(number, self._made, missing, imports.path, imports.env)

    def _end_unused(self) -> Iterator[StopZygote]:
        """End zygotes that nothing is forked from any more, but for the newest one."""
        ready = [one for one in self._zygotes.values() if one.is_ready]
        for one in ready[:-1]:
            is_parent = any(other.parent == one.number for other in self._zygotes.values())
            if not is_parent and not self.has_meshes(one.number):
                del self._zygotes[one.number]
                yield StopZygote(one.parent, one.number)

    def _busy(self) -> _Zygote | None:
        return next((one for one in self._zygotes.values() if not one.is_ready), None)

    def _allowed(self, modules: Sequence[str]) -> list[str]:
        """The modules without those that were given up, and theirs."""
        return [
            module
            for module in modules
            if not any(module == one or module.startswith(f"{one}.") for one in self.given_up)
        ]

    def _made_for(self, imports: Imports, modules: Collection[str]) -> _Zygote | None:
        """The newest zygote that has these modules, imported as that client would."""
        for one in reversed(self._zygotes.values()):
            if (
                one.is_ready
                and one.modules.issuperset(modules)
                and self._same_variables(one.env, [imports.env], one.reads)
                and self._finds_alike(one.modules, one.path, imports.path)
            ):
                return one
        return None

    def _suits(self, zygote: _Zygote, held: _Held) -> bool:
        return (
            zygote.is_ready
            and self._same_variables(zygote.env, held.envs, zygote.reads)
            and self._finds_alike(zygote.modules, zygote.path, held.imports.path)
        )

    def _would_suit(self, held: _Held) -> bool:
        """Whether a zygote made for this mesh would suit it, as far as that is known before."""
        return self._same_variables(held.imports.env, held.envs, ())

    def _same_variables(
        self, made_with: Environment, envs: Sequence[Environment], reads: Collection[str]
    ) -> bool:
        """Whether variables that modules may have read have the same values on all ranks."""
        return all(
            self._value(made_with, name) == self._value(env, name)
            for env in envs
            for name in {*made_with, *env}
            if _may_be_read(name, reads)
        )

    def _value(self, changes: Environment, name: str) -> str | None:
        return changes[name] if name in changes else self._environment.get(name)


def _may_be_read(name: str, reads: Collection[str]) -> bool:
    if name.startswith(READ_LATER):
        return False
    return name in reads or any(
        name.startswith(one) if one.endswith("_") else name == one for one in READ_IN_C
    )
