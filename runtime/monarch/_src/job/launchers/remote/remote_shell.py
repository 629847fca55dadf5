"""Shell lines that start `remote_program` on another host, and the wording of its failures.

Runs in: clients. No I/O: it makes lines for the standard input there, and texts from answers.
Invariants: the arguments of a process there hold the path of an interpreter and nothing else; the
rest, keys included, is read from standard input. The lines run on any Python 3, so that an
interpreter that is too old or lacks monarch is reported as such.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence

import msgspec

from monarch._src import version
from monarch._src.job.launchers.remote import remote_program
from monarch._src.version import VERSION
from monarch._src.wire.versions import mismatch

PACKAGE = "monarch-jupyter"
NO_SUCH_COMMAND, NOT_EXECUTABLE = 127, 126  # exit statuses of a shell

# Reads exactly one line, the `repr` of a program, and runs that.
_BEGIN = 'exec(eval(open(0,"rb",0,closefd=False).readline()))'
_ANSWERS = f"""
import json, os, sys
def said():
    with open(0, "rb", 0, closefd=False) as lines:
        return json.loads(lines.readline().decode())
def answer(**what):
    os.write(1, {remote_program.ANSWER!r} + json.dumps(what).encode() + b"\\n")
"""
# Sets environment and directory, then executes the interpreter again, since they may decide where
# it imports from.
_ENTER = f"""{_ANSWERS}
where = said()
if "XDG_RUNTIME_DIR" not in where["env"]:
    os.environ.pop("XDG_RUNTIME_DIR", None)  # it is taken away when the login by ssh ends
os.environ.update(where["env"])
try:
    os.chdir(where["cwd"] or "/")
except OSError as error:
    answer(why="no directory", text=str(error))
    sys.exit(1)
os.execv(sys.executable, [sys.executable, "-c", {_BEGIN!r}])
"""
_CALL = f"""{_ANSWERS}
wanted = said()
sys.path[:] = [p for p in sys.path if p]
python, monarch, text = ".".join(map(str, sys.version_info[:3])), "", ""
try:
    from {version.__name__} import VERSION as monarch
except Exception as error:
    text = "%s: %s" % (type(error).__name__, error)
fits = monarch == wanted["monarch"] and list(sys.version_info[:2]) == wanted["python"]
answer(why="" if fits else "versions", python=python, monarch=monarch, text=text, at=sys.executable)
if fits:
    from {remote_program.__name__} import main
    sys.exit(main(wanted["call"]))
"""


class Arrived(msgspec.Struct, frozen=True):
    """The first answer of the interpreter there. `why`: the obstacle that it has met, such as
    `versions`.

    `monarch` is empty if it has none, with the reason in `text`; `at` is the interpreter.
    """

    why: str = ""
    text: str = ""
    python: str = ""
    monarch: str = ""
    at: str = ""


def command(python: str) -> str:
    """The command for the shell there. `~/` stands for the home directory of that user."""
    home, path = ("~/", python[2:]) if python.startswith("~/") else ("", python)
    return f"exec {home}{shlex.quote(path)} -c {shlex.quote(_BEGIN)}"


def lines(call: str, env: Mapping[str, str], cwd: str) -> bytes:
    """The lines for its standard input, up to the request for `remote_program.main`."""
    wanted = {"monarch": VERSION, "python": list(sys.version_info[:2]), "call": call}
    said = [
        ascii(_ENTER),
        json.dumps({"env": dict(env), "cwd": cwd}),
        ascii(_CALL),
        json.dumps(wanted),
    ]
    return "".join(f"{line}\n" for line in said).encode()


# --- problems -------------------------------------------------------------------------------------


def arrived_problem(host: str, arrived: Arrived) -> str:
    """The reason why it cannot go on there, with the remedy; empty if it can."""
    if arrived.why == "no directory":
        return (
            f"the working directory does not exist on {host}: {arrived.text}; make it, or give "
            "another cwd"
        )
    if not arrived.why:
        return ""
    install = f"`{arrived.at} -m pip install {PACKAGE}=={VERSION}` on {host}"
    if not arrived.monarch:
        return (
            f"{arrived.at} on {host} has no monarch ({arrived.text}): run {install}, or give the "
            "python= that has it"
        )
    here = {"monarch": VERSION, "python": ".".join(map(str, sys.version_info[:3]))}
    table = mismatch(
        f"{arrived.at} on {host}", here, {"monarch": arrived.monarch, "python": arrived.python}
    )
    return f"{table}\nrun {install}, or give the python= of an environment that is like this one"


def status_problem(host: str, python: str, status: int, said: Sequence[str], again: str) -> str:
    """The reason for a missing answer, from the exit status and last output of ssh.

    `again`: a command that shows whether the host can be reached at all.
    """
    last = said[-1].strip() if said else "it printed nothing"
    if status == 255:
        return f"ssh cannot connect: {last}; `{again}` has to work without a prompt"
    if status in (NO_SUCH_COMMAND, NOT_EXECUTABLE):
        return f"{python} cannot be run on {host}: {last}; give python= one that has monarch there"
    if status < 0:
        return f"ssh was ended by signal {-status}: {last}"
    return (
        f"{python} on {host} ended with status {status}: {last}; give python= an interpreter that "
        f"has monarch {VERSION}"
    )
