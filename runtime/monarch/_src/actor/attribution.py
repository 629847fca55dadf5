"""Find the actor and endpoint, or the client, of a measurement; remember transfers as spans.

Runs in: any process, any thread. A measurement starts no session, so a program without meshes may
measure too.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from time import monotonic_ns
from typing import NamedTuple

from monarch._src.actor.context import Context, current, runtime_if_loaded
from monarch._src.actor.state.history import HISTORY


class Attribution(NamedTuple):
    """A proc mesh (0: the client), the actor on it, and its endpoint; empty fields: none."""

    mesh: int
    mesh_name: str
    actor_class: str
    actor: str
    endpoint: str


# Spans that are remembered share one object, and making it takes longer than finding it.
_attribution = lru_cache(maxsize=256)(Attribution)
# The attribution of code outside of any actor.
CLIENT = Attribution(0, "client", "client", "client", "")


def current_attribution() -> Attribution:
    """The attribution of the calling code."""
    context = current.get()
    return _outside() if context is None else _of(context)


def _of(context: Context) -> Attribution:
    me = context.actor_instance
    if me.proc_ref is None:
        return _outside()
    return _attribution(me.proc_ref.uid, me.proc_ref.name, me.class_name, me.name, context.endpoint)


def _outside() -> Attribution:
    """The attribution of a thread that belongs to no actor."""
    run = runtime_if_loaded()
    if run is None:
        return CLIENT
    if run.proc_ref is not None:
        return _attribution(run.proc_ref.uid, run.proc_ref.name, "", "", "")
    return CLIENT if run.client_ref is None else CLIENT._replace(mesh=run.client_ref.uid)


TRANSFERS_TRACK = "transfers"
"""The name under which the history of a process has them."""


@contextmanager
def transfer_span(name: str) -> Generator[None]:
    """Remember the block as a transfer, if this process keeps history."""
    if HISTORY.spans is None:
        yield
        return
    place, begun_ns, failed = current_attribution(), monotonic_ns(), True
    try:
        yield
        failed = False
    finally:
        HISTORY.add_span(name, place, begun_ns, monotonic_ns(), TRANSFERS_TRACK, failed=failed)
