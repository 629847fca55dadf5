"""The recent usage of each rank: processor, memory, devices. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from monarch.observe import MeshSnapshot, RankRow

EVERY_S = 1.0
MOST_SAMPLES = 300
LEAST_SAMPLES = 30
MOST_FIGURES = 30_000
"""Of one mesh and one measure, over all samples: large meshes have a shorter history."""


class SampleMessage(TypedDict):
    """The figures of all ranks, by rank, at one moment; None where they are not known.

    `age_s`: seconds since then. `cpu` and `gpu` are per cent of one processor and one device,
    `memory` and `gpu_memory` MiB.
    """

    number: int
    age_s: float
    cpu: list[int | None]
    memory: list[int | None]
    gpu: list[int | None]
    gpu_memory: list[int | None]


class UsageMessage(TypedDict):
    """The samples of a mesh after the one that the page has; `has_gpus`: any rank uses one."""

    has_gpus: bool
    samples: list[SampleMessage]


class Sample:
    """One moment of one mesh. `cpu` is None for ranks whose process is another than before."""

    def __init__(self, number: int, at: float, rows: Sequence[RankRow], before: Sample | None):
        self.number = number
        self.at = at
        self.rows = rows
        self.cpu = [_cpu_percent(before, self, place) for place in range(len(rows))]


def _cpu_percent(before: Sample | None, now: Sample, place: int) -> int | None:
    row = now.rows[place]
    if before is None or place >= len(before.rows):
        return None
    old = before.rows[place]
    if row.cpu_s is None or old.cpu_s is None or old.pid != row.pid:
        return None
    return max(0, round(100 * (row.cpu_s - old.cpu_s) / (now.at - before.at)))


class UsageHistory:
    """The samples of all meshes, at most one in `EVERY_S` seconds, as far back as there is room."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[Sample]] = {}

    def add(self, meshes: Sequence[MeshSnapshot], now: float) -> None:
        """Take the figures of all ranks, unless the last ones are newer than `EVERY_S`."""
        for uid in self._samples.keys() - {mesh.uid for mesh in meshes}:
            del self._samples[uid]
        for mesh in meshes:
            samples = self._samples.get(mesh.uid)
            if samples is None:
                room = MOST_FIGURES // max(1, len(mesh.rows))
                samples = deque[Sample](maxlen=max(LEAST_SAMPLES, min(MOST_SAMPLES, room)))
                self._samples[mesh.uid] = samples
            last = samples[-1] if samples else None
            # A poll comes a little early or late.
            if last is None or now - last.at >= EVERY_S * 0.9:
                number = 1 if last is None else last.number + 1
                samples.append(Sample(number, now, mesh.rows, last))

    def message(self, uid: str, after: int, now: float) -> UsageMessage:
        """The samples of a mesh whose numbers are above `after`."""
        samples = list(self._samples.get(uid, ()))
        return UsageMessage(
            has_gpus=any(row.gpu_mib is not None for one in samples[-1:] for row in one.rows),
            samples=[_message(one, now) for one in samples if one.number > after],
        )


def _message(sample: Sample, now: float) -> SampleMessage:
    rows = sample.rows
    return SampleMessage(
        number=sample.number,
        age_s=round(now - sample.at, 1),
        cpu=sample.cpu,
        memory=[_rounded(row.rss_mib) for row in rows],
        gpu=[row.gpu_percent for row in rows],
        gpu_memory=[_rounded(row.gpu_mib) for row in rows],
    )


def _rounded(figure: float | None) -> int | None:
    return None if figure is None else round(figure)
