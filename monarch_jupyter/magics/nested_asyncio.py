"""`%monarch asyncio`: whether `asyncio.run(...)` of an unmodified script works in a cell."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation

_undo: ExitStack | None = None


def nested_asyncio(on: bool) -> bool:
    """Let `asyncio.run` and `run_until_complete` work while a loop runs, or undo that.

    Returns whether this changed anything. Turning it off, or unloading the extension, restores all
    that it patched.

    Raises:
        CommandError: nest-asyncio2 is not installed, or the running loop is no loop of asyncio.
    """
    global _undo
    if on == (_undo is not None):
        return False
    if on:
        _undo = _allow()
    else:
        assert _undo is not None
        undo, _undo = _undo, None
        undo.close()
    return True


def _allow() -> ExitStack:
    try:
        import nest_asyncio2  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise CommandError(
            "asyncio on needs the package nest-asyncio2; `pip install nest-asyncio2`"
        ) from None
    try:
        loop: Any = asyncio.get_running_loop()
    except RuntimeError:
        raise CommandError("asyncio on is for notebooks: no loop runs here") from None
    if not isinstance(loop, asyncio.BaseEventLoop):
        kind = f"{type(loop).__module__}.{type(loop).__qualname__}"
        raise CommandError(
            f"asyncio on can't nest in a loop of {kind.partition('.')[0]} ({kind}); "
            "run the kernel without it, or write `await main()` in the cell"
        )
    with ExitStack() as undo:
        undo.callback(_forget_nesting, loop)
        for touched in _touched(loop):
            undo.callback(_put_back, touched, _own(touched))
        cast("Any", nest_asyncio2).apply(loop)
        return undo.pop_all()
    raise AssertionError("unreachable")


def _touched(loop: Any) -> Iterator[Any]:
    """The modules and classes that nest-asyncio2 patches."""
    yield from (asyncio, asyncio.events, asyncio.futures, asyncio.tasks)
    tornado = sys.modules.get("tornado.concurrent")
    if tornado is not None:
        yield tornado
    policy: Any = getattr(asyncio.events, "_event_loop_policy", None)
    for kind in (*type(loop).__mro__, *type(policy).__mro__):
        if kind not in (object, type(None)):
            yield kind


def _put_back(touched: Any, before: dict[str, Any]) -> None:
    now = _own(touched)
    for name, value in now.items():
        if name not in before:
            delattr(touched, name)
        elif before[name] is not value:
            setattr(touched, name, before[name])
    for name, value in before.items():
        if name not in now:
            setattr(touched, name, value)


def _forget_nesting(loop: Any) -> None:
    # The loop may be in the middle of a turn of the nested kind, which looks at this until its end.
    loop._nest_deferred = None
    loop.call_soon(lambda: loop.__dict__.pop("_nest_deferred", None))


def _own(touched: Any) -> dict[str, Any]:
    return {**touched.__dict__}


def _run(invocation: Invocation) -> None:
    words = invocation.arguments.positionals
    if len(words) > 1 or (words and words[0] not in ("on", "off")):
        raise CommandError("asyncio takes on or off; `%monarch asyncio on`")
    if words:
        nested_asyncio(words[0] == "on")
    state = "on: asyncio.run(...) works in a cell" if _undo is not None else "off"
    sys.stdout.write(f"nested asyncio is {state}\n")


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return [] if words else ["on", "off"]


COMMAND = Command(
    name="asyncio",
    usage="asyncio [on | off]",
    summary="let asyncio.run(...) of an unmodified script work in a cell; off by default",
    run=_run,
    complete=_complete,
)
