"""Hosts that work together: their keys, whether they reach each other, workers, jobs."""

from __future__ import annotations

import argparse

from monarch._src.cli.options.common import (
    WAIT_S,
    Commands,
    add_command,
    add_group,
    add_identity,
    add_timeout,
)


def add(commands: Commands) -> None:
    """Spell them."""
    _add_keys(commands)
    _add_reach(commands)
    _add_worker(commands)
    _add_job(commands)


def _add_keys(commands: Commands) -> None:
    of_keys = add_group(
        commands,
        "keys",
        help="the keys with which hosts of a job tell each other from strangers",
        description="Make the key pairs of a job, or show whose there are. Keys are never printed.",
    )
    make = add_command(
        of_keys, "make", _keys_make, help="make the pairs of a new job",
        description="Make a directory with the key pairs of a new job: one for workers, one for "
        "its owner, one for observers. Keys that exist are never replaced.",
    )  # fmt: skip
    make.add_argument("directory", metavar="DIRECTORY")
    make.add_argument("--job", default="", metavar="NAME", help="a name for people")
    show = add_command(
        of_keys, "show", _keys_show, help="whose keys there are, by fingerprint",
        description="List the keys of a job by role and fingerprint, and which can be used here.",
    )  # fmt: skip
    show.add_argument("directory", metavar="DIRECTORY", help="or the file job.public")


def _add_reach(commands: Commands) -> None:
    reach = add_command(
        commands,
        "reach",
        _reach,
        help="whether two hosts can work together: addresses, keys, versions, speed",
        description="On one host: `monarch reach --keys DIRECTORY --listen tcp://*:26600`. On "
        "another: `monarch reach --keys DIRECTORY tcp://HOST:26600`. Exit status 1: they can't, "
        "and why.",
    )
    what = reach.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "addresses", nargs="*", default=[], metavar="ADDRESS",
        help="where the other listens; of several the first that answers",
    )  # fmt: skip
    what.add_argument("--listen", metavar="ADDRESS", help="answer there; or DIAL@BIND")
    add_identity(reach, "the pair to dial with (default: owner.key)")
    reach.add_argument("--audit", metavar="FILE", help="write there who is let in and refused")
    reach.add_argument("--once", action="store_true", help="end when the first has left")
    add_timeout(reach, WAIT_S, "how long to try")
    reach.add_argument(
        "--size", type=int, default=64, metavar="MIB",
        help="how much to send to measure the rate (default: %(default)d; 0: nothing)",
    )  # fmt: skip


def _add_worker(commands: Commands) -> None:
    worker = add_command(
        commands,
        "worker",
        _worker,
        help="make this host a worker: clients have it by attach_to_workers",
        description="Serve this host: wait for a client, run what it spawns, end all of that when "
        "it lets go or is lost, and wait for the next. Ends when a client shuts it down, on Ctrl-C "
        "and on SIGTERM. `monarch worker --address 'tcp://*:26600' --keys DIRECTORY`",
    )
    worker.add_argument(
        "--address", required=True, metavar="ADDRESS",
        help="listen there: tcp://HOST:PORT, tcp://*:PORT, ipc://PATH; or DIAL@BIND, to listen at "
        "BIND and have others dial DIAL",
    )  # fmt: skip
    add_identity(worker, "the pair to serve with (default: worker.key beside them)")
    worker.add_argument(
        "--audit", metavar="FILE", help="write there who comes, who is refused, and what is done"
    )


def _add_job(commands: Commands) -> None:
    of_job = add_group(
        commands,
        "job",
        help="hosts that are reserved for many programs: which there are, and their end",
        description="List the jobs of yours, look at one, or give back its hosts. A JOB is a name, "
        "as in job.state(job_path(NAME)), or the path of a record.",
    )
    add_command(
        of_job, "list", _job_list, help="those that have a name, and that of this directory",
        description="List the jobs that have a name, and the one recorded in this directory.",
    )  # fmt: skip
    shown = add_command(
        of_job, "show", _job_show, help="its hosts, and whether they answer",
        description="Show a job: its record, its hosts, and whether they answer.",
    )  # fmt: skip
    shown.add_argument("which", metavar="JOB")
    ended = add_command(
        of_job, "kill", _job_kill, help="give its hosts back; what runs there ends",
        description="Give the hosts of a job back and remove its record; what runs there ends. "
        "Exit status 1: some could not be given back, and the record stays.",
    )  # fmt: skip
    ended.add_argument("which", metavar="JOB")


def _keys_make(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import keys

    return keys.run_make(arguments.directory, arguments.job)


def _keys_show(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import keys

    return keys.run_show(arguments.directory)


def _reach(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import check_network as reach

    if arguments.listen is not None:
        return reach.run_listen(
            arguments.listen, arguments.keys, arguments.audit, once=arguments.once
        )
    return reach.run_dial(
        arguments.addresses, arguments.keys, arguments.key, arguments.timeout, arguments.size
    )


def _worker(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import worker

    return worker.run(arguments.address, arguments.keys, arguments.key, arguments.audit)


def _job_list(_arguments: argparse.Namespace) -> int:
    from monarch._src.cli import job

    return job.run_list()


def _job_show(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import job

    return job.run_show(arguments.which)


def _job_kill(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import job

    return job.run_kill(arguments.which)
