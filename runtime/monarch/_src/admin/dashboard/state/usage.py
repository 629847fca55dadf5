"""The recent usage of each rank, from rows of the table `procs`. No I/O, no clock.

The page's side is the type `Usage` of `widgets/js/activity_protocol.js`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

MOST_SAMPLES = 120
LEAST_APART_S = 0.5
MIB = 1 << 20


class SampleMessage(msgspec.Struct):
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


class UsageMessage(msgspec.Struct):
    """The samples of a mesh after the one that the page has; `has_gpus`: any rank uses one."""

    has_gpus: bool
    samples: list[SampleMessage]


class _Figures(msgspec.Struct):
    """The figures of one rank."""

    pid: int | None
    cpu_s: float | None
    rss_bytes: int | None
    gpu_percent: int | None
    gpu_bytes: int | None


class _Sample(msgspec.Struct):
    number: int
    at_s: float
    ranks: dict[int, _Figures]
    cpu: dict[int, int | None]


class UsageHistory:
    """The samples of all meshes that were seen lately."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[_Sample]] = {}

    def add(self, rows: Iterable[Mapping[str, Any]], now_s: float) -> None:
        """Take the figures of all ranks now; forget meshes that are gone."""
        by_mesh: dict[str, dict[int, _Figures]] = {}
        for row in rows:
            by_mesh.setdefault(f"{row['mesh_id']:x}", {})[row["rank"]] = _Figures(
                row["pid"], row["cpu_s"], row["rss_bytes"], row["gpu_percent"], row["gpu_bytes"]
            )
        for uid in self._samples.keys() - by_mesh.keys():
            del self._samples[uid]
        for uid, ranks in by_mesh.items():
            samples = self._samples.setdefault(uid, deque[_Sample](maxlen=MOST_SAMPLES))
            last = samples[-1] if samples else None
            if last is not None and now_s - last.at_s < LEAST_APART_S:
                continue
            number = 1 if last is None else last.number + 1
            cpu = {rank: _cpu_percent(last, rank, one, now_s) for rank, one in ranks.items()}
            samples.append(_Sample(number, now_s, ranks, cpu))

    def message(self, uid: str, after: int, now_s: float) -> UsageMessage:
        """The samples of a mesh whose numbers are above `after`."""
        samples = self._samples.get(uid, ())
        return UsageMessage(
            any(one.gpu_bytes is not None for s in list(samples)[-1:] for one in s.ranks.values()),
            [_message(one, now_s) for one in samples if one.number > after],
        )


def _cpu_percent(before: _Sample | None, rank: int, now: _Figures, now_s: float) -> int | None:
    old = None if before is None else before.ranks.get(rank)
    if before is None or old is None or old.pid != now.pid:
        return None
    if old.cpu_s is None or now.cpu_s is None:
        return None
    return max(0, round(100 * (now.cpu_s - old.cpu_s) / (now_s - before.at_s)))


def _message(sample: _Sample, now_s: float) -> SampleMessage:
    places = range(max(sample.ranks, default=-1) + 1)
    ranks = [sample.ranks.get(place) for place in places]
    return SampleMessage(
        sample.number,
        round(max(0.0, now_s - sample.at_s), 1),
        [sample.cpu.get(place) for place in places],
        [_mib(one.rss_bytes) if one else None for one in ranks],
        [one.gpu_percent if one else None for one in ranks],
        [_mib(one.gpu_bytes) if one else None for one in ranks],
    )


def _mib(size: int | None) -> int | None:
    return None if size is None else round(size / MIB)
