"""`monarch explain`: the case file of a fault or hang, as text or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from monarch._src.admin.cluster_reader import ClusterReader, NoSessionError, find_live
from monarch._src.admin.explain import case_from


def run(
    bases: Sequence[str] | None,
    timeout_s: float | None,
    names: Sequence[str],
    *,
    stacks: bool,
    as_json: bool,
) -> int:
    """Print the case file; return 1 if there is no such session, or rows are missing."""
    try:
        chosen = find_live(bases, names)
    except NoSessionError as error:
        print(f"monarch explain: {error}", file=sys.stderr)
        return 1
    if not chosen and not as_json:
        print("you have no sessions on this machine")
        return 0
    reader = ClusterReader(lambda: chosen)
    case = case_from(lambda needs, seconds: reader.collect(dict(needs), seconds), timeout_s, stacks)
    print(msgspec.json.format(msgspec.json.encode(case)).decode() if as_json else case)
    return 1 if case.missing else 0
