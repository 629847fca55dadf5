"""Cycles in a graph of waits. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

N = TypeVar("N", bound="tuple[int, int]")


def cycles_of(edges: Mapping[N, Iterable[N]]) -> list[list[N]]:
    """A shortest cycle through the smallest node of each set of nodes that reach each other.

    The time is in proportion to the nodes times the edges.
    """
    found: list[list[N]] = []
    covered: set[N] = set()
    for start in sorted(edges):
        if start in covered:
            continue
        cycle = _shortest(edges, start)
        if cycle is not None:
            found.append(cycle)
            covered |= _reaching_back(edges, start)
    return found


def _shortest(edges: Mapping[N, Iterable[N]], start: N) -> list[N] | None:
    """The shortest way from a node back to it; None if there is none."""
    came_from: dict[N, N] = {}
    level = [start]
    while level:
        following: list[N] = []
        for node in level:
            for target in sorted(edges.get(node, ())):
                if target == start:
                    way = [node]
                    while way[-1] != start:
                        way.append(came_from[way[-1]])
                    return way[::-1]
                if target not in came_from:
                    came_from[target] = node
                    following.append(target)
        level = following
    return None


def _reaching_back(edges: Mapping[N, Iterable[N]], start: N) -> set[N]:
    """The nodes that a node reaches, and that reach it."""
    backwards: dict[N, set[N]] = {}
    for node, targets in edges.items():
        for target in targets:
            backwards.setdefault(target, set()).add(node)
    return _reached(edges, start) & _reached(backwards, start)


def _reached(edges: Mapping[N, Iterable[N]], start: N) -> set[N]:
    seen, pending = {start}, [start]
    while pending:
        for target in edges.get(pending.pop(), ()):
            if target not in seen:
                seen.add(target)
                pending.append(target)
    return seen
