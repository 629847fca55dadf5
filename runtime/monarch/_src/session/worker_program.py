"""The agent of a worker host as a program: begins without a client, listens for one.

Runs in: a process that was executed for it (`worker_command`), on its only thread.
Invariants: keys are read after the zygote is forked, so no process that runs user code has ever
had them in its memory; what travels to this process is the path of their file.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

import monarch
from monarch._src.config import settings
from monarch._src.host.agent import Agent
from monarch._src.host.owner import AgentServices
from monarch._src.host.state.host import Host
from monarch._src.net import session_directory as sessions
from monarch._src.net.hosts import keys
from monarch._src.net.hosts.audit import Audit
from monarch._src.net.interfaces import listening_problem
from monarch._src.net.node import Node
from monarch._src.net.state.access import TRUST_ALL, Role
from monarch._src.net.state.addresses import parse_listening
from monarch._src.programs import agent as agent_main
from monarch._src.session import records
from monarch._src.session.worker_part import Serving, WorkerHost
from monarch._src.system.process import CHILD_VARIABLE
from monarch._src.wire.ids import new_site

_ROOT = str(Path(monarch.__file__).parent.parent)
_PROGRAM = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "root = sys.argv.pop(); root in sys.path or sys.path.append(root); "
    "from monarch._src.session.worker_program import main; main()"
)


class WorkerOptions(msgspec.Struct, frozen=True):
    """How to serve. `ca`, `private_key` and `audit` are paths; `ca` may be `TRUST_ALL`, or empty.

    `report` and `lifeline` are descriptors, or -1: the first is told a `Report`, the end of the
    second ends the worker. `cwd`: where its ranks are, in place of where their client is.
    """

    address: str
    ca: str
    private_key: str | None = None
    audit: str | None = None
    report: int = -1
    lifeline: int = -1
    cwd: str = ""


class Report(msgspec.Struct, frozen=True):
    """How it has begun: where it listens, and how others reach it; or why it does not.

    `kind` is the class of the exception that says so.
    """

    listening: str = ""
    others: list[str] = []
    no_others: str = ""  # why other hosts cannot reach it
    problem: str = ""
    kind: str = ""

    def as_text(self) -> str:
        """Where it listens, for people: two lines."""
        others = ", ".join(self.others) or f"no address: {self.no_others}"
        return f"listening at {self.listening}\nothers reach it at {others}\n"


def worker_command(options: WorkerOptions, directory: Path) -> tuple[list[str], Mapping[str, str]]:
    """What to execute for a worker in that session directory, which it removes in the end."""
    arguments = [str(directory), msgspec.json.encode(options).decode(), _ROOT]
    env = {**os.environ, CHILD_VARIABLE: str(directory)}
    env.setdefault("OMP_NUM_THREADS", "1")
    return [sys.executable, "-c", _PROGRAM, *arguments], env


def main() -> None:
    """`python -c ... DIRECTORY OPTIONS`: serve this host until told to end."""
    directory = Path(sys.argv[1])
    options = msgspec.json.decode(sys.argv[2], type=WorkerOptions)
    said = records.of_this_worker(options.address)
    own = [fd for fd in (options.report, options.lifeline) if fd > 2]
    try:
        status = agent_main.serve(
            directory, said, lambda zygote: _agent(directory, options, zygote), own
        )
    except (OSError, ValueError) as error:
        _report(options, Report(problem=_text(options, error), kind=type(error).__name__))
        sessions.remove(directory)
        status = 1
    raise SystemExit(status)


def _agent(directory: Path, options: WorkerOptions, zygote: socket.socket) -> Agent:
    trusts_all = options.ca == TRUST_ALL
    own = None
    if options.ca and not trusts_all:
        own = keys.load(options.ca, options.private_key, Role.WORKER, only=True)
    serving = Serving(
        parse_listening(options.address), own, trusts_all, Audit(options.audit),
        settings().liveness, None if options.lifeline < 0 else options.lifeline,
    )  # fmt: skip

    def hosting(node: Node, host: Host, driver: AgentServices) -> WorkerHost:
        made = WorkerHost(serving, directory, node, host, driver)
        try:
            others, why = [str(address) for address in made.advertised_addresses()], ""
        except ValueError as error:
            others, why = [], str(error)
        _report(options, Report(str(made.listening.bind), others, why))
        return made

    agent = Agent(directory, zygote, hosting, new_site(os.uname().nodename), options.cwd)
    signal.signal(signal.SIGINT, agent.terminate)  # it may be in front of a terminal
    return agent


def _report(options: WorkerOptions, report: Report) -> None:
    if options.report >= 0:
        os.write(options.report, msgspec.json.encode(report) + b"\n")
        if options.report > 2:
            os.close(options.report)
        return
    if report.problem:
        os.write(2, f"monarch worker: {report.problem}\n".encode())
        return
    os.write(1, report.as_text().encode())


def _text(options: WorkerOptions, error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.strerror is not None:
        return listening_problem(parse_listening(options.address).bind, error)
    return str(error)
