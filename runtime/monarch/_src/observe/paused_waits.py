"""Which paused ranks the program of this process waits for.

Runs in: the client, any thread.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

from monarch._src import events
from monarch._src.events import RankPaused
from monarch._src.mesh.map.open_maps import open_maps
from monarch._src.observe.open_calls import OpenCall, open_calls

_RUNTIME = str(Path(events.__file__).parent) + "/"


def owing_answers(paused: Collection[RankPaused]) -> list[RankPaused]:
    """Those of these paused ranks that owe an answer to a call, or to a map, that is awaited now.

    A rank that owes nothing may hold up a call all the same; see `is_waiting`.
    """
    owing = {
        (call.mesh_uid, tuple(point.items())) for call in _awaited_calls() for point in call.owing
    }
    return [one for one in paused if (one.uid, tuple(one.point.items())) in owing]


def is_waiting(thread: int) -> bool:
    """Whether that thread is inside this package, or a call or a map is awaited.

    Such a wait may depend on any rank: a call on a peer that its endpoint calls, a collective on
    each rank of its group, a port on its senders.
    """
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_filename.startswith(_RUNTIME):
            return True
        frame = frame.f_back
    return bool(_awaited_calls())


def _awaited_calls() -> list[OpenCall]:
    of_maps = {number for one in open_maps() if one.awaited for number in one.calls}
    return [call for call in open_calls() if call.awaited or call.number in of_maps]
