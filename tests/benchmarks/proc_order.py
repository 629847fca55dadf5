"""What a proc runs until its first answer: `monarch._src.proc.order`, written anew.

    python -m tests.benchmarks.proc_order [--write]

Linux, Python 3.11 or newer. A mesh is spawned whose processes note what they run. Without `--write`
this prints how much of it is in the file. `tests.benchmarks.second_mesh` tells what it is good for.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType

from monarch._src.actor import proc_main
from monarch._src.mesh import session
from monarch._src.proc import order
from monarch._src.proc.spec import Boot
from monarch.actor import Actor, endpoint, this_host

HERE = "tests.benchmarks.proc_order"
ROOT = Path(__file__).parents[2]
TEXT = '''"""What a proc runs until its first answer, and the names in it: see `layout`.

Written by `python -m tests.benchmarks.proc_order --write`. A line of functions begins with their
module.
"""

FUNCTIONS = """\\
{functions}
"""

NAMES = """\\
{names}
"""
'''

_executed: dict[CodeType, str] = {}  # and the modules they are in


class Sample(Actor):
    """Does next to nothing."""

    def __init__(self) -> None:
        self.n = 0

    @endpoint
    def add(self, x: int) -> int:
        self.n += x
        return self.n

    @endpoint
    def executed(self) -> dict[str, tuple[list[str], list[str]]]:
        return sys.modules[HERE].executed()  # this class was sent by value


def prepare() -> Callable[[Boot, int], int]:
    """In place of the entry point of procs: has them note what they run, from the fork on."""
    main = proc_main.prepare()
    threading.setprofile(_note)
    os.register_at_fork(
        before=lambda: sys.setprofile(_note), after_in_parent=lambda: sys.setprofile(None)
    )
    return main


def _note(frame: FrameType, event: str, _argument: object) -> None:
    if event == "call":
        _executed.setdefault(frame.f_code, frame.f_globals.get("__name__", ""))


def executed() -> dict[str, tuple[list[str], list[str]]]:
    """By module: the functions that this process has run, and the names in them."""
    sys.setprofile(None)
    found: dict[str, tuple[list[str], list[str]]] = {}
    for code, module in _executed.items():
        if module in ("__main__", HERE):
            continue
        functions, names = found.setdefault(module, ([], []))
        functions.append(code.co_qualname)
        names += code.co_names
        names += _words_in(code.co_consts)
    return found


def _words_in(constants: Iterable[object]) -> Iterator[str]:
    """What they hold of names: of keyword arguments, and what `getattr` is asked for."""
    for one in constants:
        if isinstance(one, tuple):
            yield from _words_in(one)
        elif isinstance(one, str) and one.isidentifier():
            yield one


def of_a_proc() -> dict[str, tuple[list[str], list[str]]]:
    """What one has run by its first answer. Begins a session of its own."""
    before, path = session._PROGRAM, os.environ.get("PYTHONPATH")
    session._PROGRAM = before.replace(
        "import main;", f"import main; import monarch._src.proc.agent_main as agent; "
        f"agent.ENTRY = '{HERE}:prepare';"
    )  # fmt: skip
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [path])])
    try:
        procs = this_host().spawn_procs({"gpus": 2})
        sample = procs.spawn("sample", Sample)
        sample.add.call(1).get()
        found = sample.slice(gpus=0).executed.call_one().get()
        procs.stop().get()
    finally:
        session._PROGRAM = before
        os.environ.pop("PYTHONPATH")
        if path is not None:
            os.environ["PYTHONPATH"] = path
    return found


def as_module(found: dict[str, tuple[list[str], list[str]]]) -> str:
    """The text of the file. What is defined in a function is laid with that."""
    lines: list[str] = []
    names: set[str] = set()
    for module, (functions, used) in sorted(found.items()):
        named = [name for name in dict.fromkeys(functions) if "<" not in name]
        width = 99 - len(module)
        lines += (f"{module} {part}" for part in textwrap.wrap(" ".join(named), width))
        names |= set(used) | {part for name in named for part in name.split(".")}
    return TEXT.format(
        functions="\n".join(lines), names=textwrap.fill(" ".join(sorted(names)), 100)
    )


def missing(found: dict[str, tuple[list[str], list[str]]]) -> tuple[list[str], int]:
    """What of it is not in the file, and how much of it there is in all."""
    listed = {
        (module, name)
        for module, *names in map(str.split, order.FUNCTIONS.splitlines())
        for name in names
    }
    run = {(module, name) for module, (names, _) in found.items() for name in names}
    run = {(module, name) for module, name in run if "<" not in module + name}
    return sorted(":".join(each) for each in run - listed), len(run)


def main() -> None:
    """Measure and print, or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found = of_a_proc()
    if options.write:
        Path(order.__file__).write_text(as_module(found))
        return
    absent, count = missing(found)
    print(f"{count} functions, of which {len(absent)} are not in the file")
    for name in absent:
        print(f"  {name}")


if __name__ == "__main__":
    main()
