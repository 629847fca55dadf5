"""Scripts whose begin and end are compared under torchrun and under `monarch torchrun`.

Each script runs on two ranks. `note(text)` appends a line to a file of the rank, which is the
record of what the script has done, in order. The record that is expected, and whether the exit
status is 0, hold for torchrun too: `test_scripts_as_torchrun.py` runs both.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HEAD = """\
import os, sys
RANK = os.environ["RANK"]
INTO = os.environ["INTO"]
def note(text, path=os.path.join(INTO, "record" + RANK), open=open):
    with open(path, "a") as record:
        record.write(f"{text}\\n")
"""
# Before a script in which both ranks fail, and whose records have to be complete: torchrun ends the
# others by SIGTERM as soon as one has failed, and on a busy machine one may have only begun.
BOTH_END_BY_THEMSELVES = """\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
begun = os.path.join(INTO, "begun" + os.environ["TORCHELASTIC_RESTART_COUNT"] + "-")
open(begun + RANK, "w").close()
while not all(os.path.exists(begun + rank) for rank in "01"): time.sleep(0.01)
"""


@dataclass(frozen=True)
class Script:
    """A script, the lines of its record on each rank, and its status."""

    name: str
    source: str
    record: Sequence[str] = ()
    succeeds: bool = True
    arguments: Sequence[str] = ()
    options: Sequence[str] = ()  # of torchrun
    says: str = ""  # in the error of the run; under torchrun the rank writes it
    how: str = "file"  # or "module", "folder", "zip"
    other_record: Sequence[str] | None = field(default=None)  # of rank 1, if it differs

    def expected(self) -> list[list[str]]:
        """The records of both ranks."""
        second = self.record if self.other_record is None else self.other_record
        return [list(self.record), list(second)]

    def write(self, folder: Path) -> list[str]:
        """Write the script into a folder; returns the words for torchrun, from inside of it."""
        fail_alike = not self.succeeds and self.record and self.other_record is None
        source = HEAD + (BOTH_END_BY_THEMSELVES if fail_alike else "") + self.source
        match self.how:
            case "module":
                (folder / "package").mkdir()
                (folder / "package" / "__init__.py").write_text("")
                (folder / "package" / "beside.py").write_text("HERE = 'beside'")
                (folder / "package" / "__main__.py").write_text(source)
                words = ["-m", "package"]
            case "folder":
                (folder / "folder").mkdir()
                (folder / "folder" / "__main__.py").write_text(source)
                (folder / "folder" / "beside.py").write_text("HERE = 'beside'")
                words = ["folder"]
            case "zip":
                with zipfile.ZipFile(folder / "script.zip", "w") as archive:
                    archive.writestr("__main__.py", source)
                    archive.writestr("beside.py", "HERE = 'beside'")
                words = ["script.zip"]
            case _:
                (folder / "script.py").write_text(source)
                words = ["script.py"]
        return ["--nproc-per-node", "2", *self.options, *words, *self.arguments]


def records(into: Path) -> list[list[str]]:
    """The records of both ranks."""
    paths = [into / f"record{rank}" for rank in range(2)]
    return [path.read_text().splitlines() if path.exists() else [] for path in paths]


def environment(into: Path) -> dict[str, str]:
    """The variables of this process, with the folder of the records."""
    return {**os.environ, "INTO": str(into)}


STATUSES = [
    Script("falls off its end", "note('end')", ["end"]),
    Script("sys.exit()", "note('end'); sys.exit()", ["end"]),
    Script("sys.exit(0)", "note('end'); sys.exit(0)", ["end"]),
    Script("sys.exit(False)", "sys.exit(False)"),
    Script("sys.exit(256)", "sys.exit(256)"),
    Script("sys.exit(3)", "sys.exit(3)", succeeds=False, says="3"),
    Script("sys.exit(True)", "sys.exit(True)", succeeds=False),
    Script("sys.exit(text)", "sys.exit('no data')", succeeds=False, says="no data"),
    Script("sys.exit('')", "sys.exit('')", succeeds=False),
    Script("raise SystemExit", "raise SystemExit"),
    Script("os._exit(0)", "note('end'); os._exit(0); note('never')", ["end"]),
    Script("os._exit(5)", "os._exit(5)", succeeds=False, says="5"),
    Script("os._exit(0) of a thread", (
        "import threading, time\n"
        "threading.Thread(target=lambda: os._exit(0)).start()\n"
        "while True: time.sleep(0.1)"
    )),
    Script("raises", "raise ValueError('a bad batch')", succeeds=False, says="a bad batch"),
    Script("raises its own kind of error", (
        "class Bad(Exception): pass\n"
        "raise Bad('a bad batch')"
    ), succeeds=False, says="a bad batch"),
    Script("raises no Exception", (
        "class Bad(BaseException): pass\n"
        "raise Bad('a bad batch')"
    ), succeeds=False, says="a bad batch"),
    Script("KeyboardInterrupt", "raise KeyboardInterrupt", succeeds=False, says="Interrupt"),
    Script("does not compile", "note('begin')\n)", succeeds=False, says="SyntaxError"),
    Script("imports an absent module", "import absent_here", succeeds=False, says="absent_here"),
    Script("one rank raises", (
        "if RANK == '1': raise ValueError('a bad batch')\n"
        "note('end')"
    ), ["end"], succeeds=False, says="a bad batch", other_record=[]),
    Script("argparse refuses", (
        "import argparse\n"
        "argparse.ArgumentParser().parse_args()"
    ), succeeds=False, arguments=["--unknown"]),
    Script("argparse helps", (
        "import argparse\n"
        "argparse.ArgumentParser().parse_args()"
    ), arguments=["--help"]),
    Script("kills itself", "import signal; os.kill(os.getpid(), signal.SIGTERM)", succeeds=False),
    Script("aborts", "os.abort()", succeeds=False),
]  # fmt: skip

ENDINGS = [
    Script("exit functions", (
        "import atexit\n"
        "atexit.register(note, 'first')\n"
        "atexit.register(note, 'second')\n"
        "note('end')"
    ), ["end", "second", "first"]),
    Script("exit functions after sys.exit(0)", (
        "import atexit\n"
        "atexit.register(note, 'exit')\n"
        "sys.exit(0)"
    ), ["exit"]),
    Script("exit functions after sys.exit(1)", (
        "import atexit\n"
        "atexit.register(note, 'exit')\n"
        "sys.exit(1)"
    ), ["exit"], succeeds=False),
    Script("exit functions after an error", (
        "import atexit\n"
        "atexit.register(note, 'exit')\n"
        "raise ValueError('a bad batch')"
    ), ["exit"], succeeds=False),
    Script("no exit functions after os._exit(0)", (
        "import atexit\n"
        "atexit.register(note, 'exit')\n"
        "os._exit(0)"
    )),
    Script("an exit function that raises", (
        "import atexit\n"
        "atexit.register(note, 'first')\n"
        "def fail(): note('fails'); 1 / 0\n"
        "atexit.register(fail)"
    ), ["fails", "first"]),
    Script("a thread that still saves", (
        "import atexit, threading, time\n"
        "def save(): time.sleep(1); note('saved')\n"
        "atexit.register(note, 'exit')\n"
        "threading.Thread(target=save).start()\n"
        "note('end')"
    ), ["end", "saved", "exit"]),
    Script("a thread that still saves after an error", (
        "import threading, time\n"
        "def save(): time.sleep(1); note('saved')\n"
        "threading.Thread(target=save).start()\n"
        "raise ValueError('a bad batch')"
    ), ["saved"], succeeds=False),
    Script("a thread that starts another", (
        "import threading, time\n"
        "def last(): time.sleep(0.2); note('last')\n"
        "def save(): time.sleep(0.2); note('saved'); threading.Thread(target=last).start()\n"
        "threading.Thread(target=save).start()"
    ), ["saved", "last"]),
    Script("a thread that raises", (
        "import threading\n"
        "def fail(): note('fails'); 1 / 0\n"
        "threading.Thread(target=fail).start()"
    ), ["fails"]),
    Script("a daemon thread", (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(60), note('never')), daemon=True).start()\n"
        "note('end')"
    ), ["end"]),
    Script("a pool of threads that still saves", (
        "import atexit, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def save(n): time.sleep(0.3); note(f'saved {n}')\n"
        "pool = ThreadPoolExecutor(1)\n"
        "for n in range(3): pool.submit(save, n)\n"
        "atexit.register(note, 'exit')\n"
        "note('end')"
    ), ["end", "saved 0", "saved 1", "saved 2", "exit"]),
    Script("a pool of processes that still saves", (
        "import multiprocessing, time\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "def save(n): time.sleep(0.2); note(f'saved {n}')\n"
        "if __name__ == '__main__':\n"
        "    pool = ProcessPoolExecutor(1, multiprocessing.get_context('fork'))\n"
        "    for n in range(2): pool.submit(save, n)\n"
        "    note('end')"
    ), ["end", "saved 0", "saved 1"]),
    Script("a child that still saves", (
        "import multiprocessing, time\n"
        "def save(): time.sleep(0.5); note('saved')\n"
        "multiprocessing.get_context('fork').Process(target=save).start()\n"
        "note('end')"
    ), ["end", "saved"]),
    Script("a child by spawn", (
        "import multiprocessing\n"
        "def save(): note(f'saved in {__name__}')\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=save)\n"
        "    child.start(); child.join(); note(child.exitcode)"
    ), ["saved in __mp_main__", "0"]),
    Script("a file that is never closed", (
        "import atexit\n"
        "file = open(os.path.join(INTO, 'record' + RANK), 'a')\n"
        "file.write('buffered\\n')\n"
        "def use(): return file"
    ), ["buffered"]),
    Script("a file that is never closed before an error", (
        "file = open(os.path.join(INTO, 'record' + RANK), 'a')\n"
        "file.write('buffered\\n')\n"
        "def use(): return file\n"
        "raise ValueError('a bad batch')"
    ), ["buffered"], succeeds=False),
    Script("a file of an object that is never closed", (
        "class Log:\n"
        "    def __init__(self): self.file = open(os.path.join(INTO, 'record' + RANK), 'a')\n"
        "    def use(self): return LOGS\n"
        "LOGS = [Log()]\n"
        "LOGS[0].file.write('buffered\\n')"
    ), ["buffered"]),
    Script("a compressed file that is never closed", (
        "import atexit, gzip\n"
        "path = os.path.join(INTO, 'data.gz' + RANK)\n"
        "file = gzip.open(path, 'wt')\n"
        "file.write('buffered')\n"
        "def look():\n"
        "    file.close()\n"
        "    note(gzip.open(path, 'rt').read())\n"
        "atexit.register(look)"
    ), ["buffered"]),
    Script("finalizers", (
        "import weakref\n"
        "class Model: pass\n"
        "model = Model()\n"
        "weakref.finalize(model, note, 'finalized')\n"
        "note('end')"
    ), ["end", "finalized"]),
    Script("finalizers after an error", (
        "import weakref\n"
        "class Model: pass\n"
        "model = Model()\n"
        "weakref.finalize(model, note, 'finalized')\n"
        "raise ValueError('a bad batch')"
    ), ["finalized"], succeeds=False),
    Script("destructors", (
        "import atexit\n"
        "class Model:\n"
        "    def __init__(self, name, note=note): self.name, self.note = name, note\n"
        "    def __del__(self): self.note(self.name)\n"
        "_private, public = Model('private'), Model('public')\n"
        "atexit.register(note, 'exit')"
    ), ["exit", "private", "public"]),
    Script("log records that are held back", (
        "import logging, logging.handlers\n"
        "target = logging.FileHandler(os.path.join(INTO, 'record' + RANK))\n"
        "logging.root.addHandler(logging.handlers.MemoryHandler(100, target=target))\n"
        "logging.warning('held back')"
    ), ["held back"]),
    Script("its own hook for uncaught exceptions", (
        "import atexit\n"
        "before = sys.excepthook\n"
        "def hook(kind, error, frames):\n"
        "    note(f'{kind.__name__}: {error}'); before(kind, error, frames)\n"
        "sys.excepthook = hook\n"
        "atexit.register(note, 'exit')\n"
        "raise ValueError('a bad batch')"
    ), ["ValueError: a bad batch", "exit"], succeeds=False, says="a bad batch"),
    Script("its own hook, but an exit", (
        "sys.excepthook = lambda *_: note('never')\n"
        "sys.exit(4)"
    ), succeeds=False),
    Script("its own sys.exit", (
        "leave = sys.exit\n"
        "def leaves(status=0): note(f'leaves with {status}'); leave(status)\n"
        "sys.exit = leaves\n"
        "sys.exit(0)"
    ), ["leaves with 0"]),
    Script("executes itself anew", (
        "if 'AGAIN' not in os.environ:\n"
        "    note('first')\n"
        "    os.environ['AGAIN'] = '1'\n"
        "    os.execv(sys.executable, [sys.executable, *sys.argv])\n"
        "note('again')"
    ), ["first", "again"]),
    Script("executes itself anew and fails", (
        "if 'AGAIN' not in os.environ:\n"
        "    os.environ['AGAIN'] = '1'\n"
        "    os.execv(sys.executable, [sys.executable, *sys.argv])\n"
        "sys.exit(3)"
    ), succeeds=False),
    Script("a fork that falls off the end", (
        "import atexit\n"
        "child = os.fork()\n"
        "if child: note(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "atexit.register(note, 'parent' if child else 'child')"
    ), ["child", "0", "parent"]),
    Script("a fork that exits", (
        "child = os.fork()\n"
        "if not child: sys.exit(7)\n"
        "note(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    ), ["7"]),
    Script("a fork with a thread that still saves", (
        "import threading, time\n"
        "def save(): time.sleep(0.3); note('saved')\n"
        "child = os.fork()\n"
        "if child: note(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "else: threading.Thread(target=save).start()"
    ), ["saved", "0"]),
]  # fmt: skip

AFTER_A_FAILURE = [
    Script("it begins again", (
        "count = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "note(f\"{count} of {os.environ['TORCHELASTIC_MAX_RESTARTS']}\")\n"
        "if count != '2': sys.exit(1)"
    ), ["0 of 3", "1 of 3", "2 of 3"], options=["--max-restarts", "3"]),
    Script("it begins again in vain", (
        "note(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "raise ValueError('a bad batch')"
    ), ["0", "1"], succeeds=False, says="a bad batch", options=["--max-restarts", "1"]),
    Script("another rank's handler of SIGTERM runs", (
        "import atexit, signal, time\n"
        "def leave(number, _frame): note(f'handles {number}'); sys.exit(0)\n"
        "if RANK == '0':\n"
        "    signal.signal(signal.SIGTERM, leave)\n"
        "    atexit.register(note, 'exit')\n"
        "    note('ready')\n"
        "    while True: time.sleep(0.05)\n"
        "while not os.path.exists(os.path.join(INTO, 'record0')): time.sleep(0.05)\n"
        "raise ValueError('a bad batch')"
    ), ["ready", "handles 15", "exit"], succeeds=False, says="a bad batch", other_record=[]),
    Script("another rank without a handler ends", (
        "import atexit, time\n"
        "if RANK == '0':\n"
        "    atexit.register(note, 'never')\n"
        "    note('ready')\n"
        "    while True: time.sleep(0.05)\n"
        "while not os.path.exists(os.path.join(INTO, 'record0')): time.sleep(0.05)\n"
        "os._exit(5)"
    ), ["ready"], succeeds=False, other_record=[]),
    Script("a process that another rank has started gets SIGTERM", (
        "import signal, subprocess, time\n"
        "CHILD = '''\n"
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "open(os.environ['INTO'] + '/ready', 'w').close()\n"
        "while True: time.sleep(0.05)\n"
        "'''\n"
        "if RANK == '0':\n"
        "    signal.signal(signal.SIGTERM, lambda *_: note('handles'))\n"
        "    note(subprocess.run([sys.executable, '-c', CHILD]).returncode)\n"
        "    sys.exit(0)\n"
        "while not os.path.exists(os.path.join(INTO, 'ready')): time.sleep(0.05)\n"
        "raise ValueError('a bad batch')"
    ), ["handles", "3"], succeeds=False, says="a bad batch", other_record=[]),
]  # fmt: skip

NAMESPACES = [
    Script("its names", (
        "note(f'{__name__} {__package__} {__spec__} {os.path.isabs(__file__)} {__doc__}')\n"
        "note(f'{sys.argv} {os.path.basename(sys.path[0]) == os.path.basename(os.getcwd())}')\n"
        "import __main__\n"
        "note(f\"{__main__.__dict__ is globals()} {sys.modules['__main__'] is __main__}\")"
    ), ["__main__ None None True None", "['script.py', 'a', 'b c'] True", "True True"],
        arguments=["a", "b c"]),
    Script("the names of a module", (
        "from . import beside\n"
        "note(f'{__name__} {__package__} {__spec__.name} {beside.HERE}')\n"
        "note(f'{os.path.relpath(sys.argv[0])} {sys.argv[1:]}')"
    ), ["__main__ package package.__main__ beside", "package/__main__.py ['a']"],
        arguments=["a"], how="module"),
    Script("a folder", (
        "import beside\n"
        "note(f'{__name__} {beside.HERE} {os.path.basename(sys.path[0])} {sys.argv}')"
    ), ["__main__ beside folder ['folder', 'a']"], arguments=["a"], how="folder"),
    Script("a zip file", (
        "import beside\n"
        "note(f'{__name__} {beside.HERE} {os.path.basename(sys.path[0])} {sys.argv}')"
    ), ["__main__ beside script.zip ['script.zip', 'a']"], arguments=["a"], how="zip"),
    Script("pickles of its own classes", (
        "import pickle\n"
        "class Item:\n"
        "    def __init__(self): self.n = 3\n"
        "note(pickle.loads(pickle.dumps(Item())).n)"
    ), ["3"]),
    Script("dataclasses and annotations", (
        "import dataclasses, typing\n"
        "@dataclasses.dataclass\n"
        "class Config:\n"
        "    lr: 'float' = 0.1\n"
        "note(f'{Config()} {typing.get_type_hints(Config)}')"
    ), ["Config(lr=0.1) {'lr': <class 'float'>}"]),
    Script("asyncio and an alarm on its main thread", (
        "import asyncio, signal, threading, time\n"
        "async def answer(): return 3\n"
        "note(asyncio.run(answer()))\n"
        "def ring(*_): raise TimeoutError('rings')\n"
        "signal.signal(signal.SIGALRM, ring)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.1)\n"
        "try: time.sleep(30)\n"
        "except TimeoutError as error: note(error)\n"
        "note(threading.current_thread() is threading.main_thread())"
    ), ["3", "rings", "True"]),
    Script("global state as at the begin of an interpreter", (
        "import locale, random, signal\n"
        "note(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)\n"
        "note(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "note(f'{os.nice(0)} {sys.getrecursionlimit()} {sys.flags.interactive}')\n"
        "note(sys.excepthook is not None and sys.stdout.isatty())"
    ), ["True", "set()", "0 1000 0", "False"]),
]  # fmt: skip

SCRIPTS = [*STATUSES, *ENDINGS, *AFTER_A_FAILURE, *NAMESPACES]
