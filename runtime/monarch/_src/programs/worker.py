"""The main program of a worker host: an agent that starts without a client and listens for one.

Runs in: a process that `session.workers.options.worker_command` starts, on its only thread.
Invariants: keys are read after the zygote is forked, so they are never in the memory of a process
that runs user code. Command lines carry only the path of the key file.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import msgspec

from monarch._src.config import settings
from monarch._src.host.agent import Agent
from monarch._src.host.draining import Drain
from monarch._src.host.owner import AgentServices
from monarch._src.host.state.host import Host
from monarch._src.net import session_directory as sessions
from monarch._src.net.hosts import keys
from monarch._src.net.hosts.audit import Audit
from monarch._src.net.interfaces import listening_problem
from monarch._src.net.node import Node
from monarch._src.net.state.access import TRUST_ALL, Role
from monarch._src.net.state.addresses import parse_listening
from monarch._src.programs.agent import PARTS, serve
from monarch._src.session import records
from monarch._src.session.workers.options import Report, WorkerOptions
from monarch._src.session.workers.worker_part import Serving, WorkerHost
from monarch._src.wire.ids import new_site


def main() -> None:
    """`python -c ... DIRECTORY OPTIONS`: serve this host until told to end."""
    directory = Path(sys.argv[1])
    options = msgspec.json.decode(sys.argv[2], type=WorkerOptions)
    record = records.of_this_worker(options.address)
    own = [fd for fd in (options.report, options.lifeline) if fd > 2]
    try:
        status = serve(directory, record, lambda zygote: _agent(directory, options, zygote), own)
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

    site = new_site(os.uname().nodename)

    def hosting(node: Node, host: Host, driver: AgentServices) -> WorkerHost:
        made = WorkerHost(serving, directory, node, host, driver)
        try:
            others, why = [str(address) for address in made.advertised_addresses()], ""
        except ValueError as error:
            others, why = [], str(error)
        _report(options, Report(str(made.listening.bind), others, why, site=site))
        return made

    agent = Agent(directory, zygote, hosting, PARTS, site, options.cwd,
                  Drain(options.grace_s, options.tells_ranks))  # fmt: skip
    signal.signal(signal.SIGINT, agent.terminate)  # the worker may run in a terminal
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
