"""`%monarch asyncio`: `asyncio.run` in a cell, and everything put back after."""

from __future__ import annotations

import asyncio

import pytest

from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.nested_asyncio import nested_asyncio
from tests.notebook.kernel import Kernel

SCRIPT = """
import asyncio
from monarch.actor import Actor, endpoint, this_host

class Adder(Actor):
    @endpoint
    async def add(self, x):
        return x + 1

async def main():
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    adders = procs.spawn("adders", Adder)
    values = await adders.add.call(1)
    print(values.values())
    await procs.stop()

asyncio.run(main())
"""
STATE = """
import asyncio, sys, types
def _asyncio_state():
    loop = asyncio.get_running_loop()
    policy = type(asyncio.events._event_loop_policy)
    touched = [asyncio, asyncio.events, asyncio.futures, asyncio.tasks, *type(loop).__mro__,
               *policy.__mro__, sys.modules["tornado.concurrent"]]
    return [{k: id(v) for k, v in vars(t).items()} for t in touched], sorted(vars(loop))
"""


def test_an_unmodified_script_runs_when_it_is_on_and_only_then(kernel: Kernel) -> None:
    assert kernel.run(SCRIPT).error_name == "RuntimeError"
    assert kernel.ok("%monarch asyncio on").stdout == (
        "nested asyncio is on: asyncio.run(...) works in a cell\n"
    )
    assert kernel.ok(SCRIPT).stdout == "[2, 2]\n"
    assert kernel.ok(SCRIPT).stdout == "[2, 2]\n"
    assert kernel.ok("await asyncio.sleep(0)\nprint('awaits too')").stdout == "awaits too\n"
    assert kernel.ok("%monarch asyncio off").stdout == "nested asyncio is off\n"
    assert kernel.run("asyncio.run(main())").error_name == "RuntimeError"


def test_off_puts_back_everything(kernel: Kernel) -> None:
    kernel.ok(f"{STATE}\nbefore = _asyncio_state()")
    kernel.ok("%monarch asyncio on")
    assert kernel.value("_asyncio_state() == before") == "False"
    kernel.ok("%monarch asyncio off")
    assert kernel.value("_asyncio_state() == before") == "True"


def test_so_does_unloading(fresh_kernel: Kernel) -> None:
    kernel = fresh_kernel
    kernel.ok(f"{STATE}\nbefore = _asyncio_state()")
    kernel.ok("%monarch asyncio on")
    kernel.ok("%unload_ext monarch_jupyter")
    assert kernel.value("_asyncio_state() == before") == "True"


def test_it_is_off_unless_somebody_has_asked(kernel: Kernel) -> None:
    assert kernel.ok("%monarch asyncio").stdout == "nested asyncio is off\n"
    assert kernel.refused("%monarch asyncio maybe") == (
        "asyncio takes on or off; `%monarch asyncio on`"
    )
    assert {"on", "off"} <= set(kernel.complete("%monarch asyncio o"))


class Loop(asyncio.AbstractEventLoop):
    """A loop that asyncio did not make, such as uvloop's."""


Loop.__module__ = "uvloop"


def test_a_loop_of_another_kind_is_refused_with_what_to_do() -> None:
    asyncio.events._set_running_loop(Loop())
    try:
        with pytest.raises(CommandError, match=r"can't nest in a loop of uvloop .*await main"):
            nested_asyncio(True)
    finally:
        asyncio.events._set_running_loop(None)
    assert not nested_asyncio(False)


def test_without_a_loop_it_is_refused() -> None:
    with pytest.raises(CommandError, match="no loop runs here"):
        nested_asyncio(True)
