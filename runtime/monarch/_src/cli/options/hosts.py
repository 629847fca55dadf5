"""Options of the commands for several hosts: `keys`, `reach`, `worker`, `job` and others."""

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
    """Add the commands."""
    _add_keys(commands)
    _add_reach(commands)
    _add_worker(commands)
    _add_apply(commands)
    _add_context(commands)
    _add_job(commands)
    _add_exec(commands)
    _add_shell(commands)
    _add_torchrun(commands)


def _add_keys(commands: Commands) -> None:
    of_keys = add_group(
        commands,
        "keys",
        help="make and list the keys that authenticate the hosts of a job",
        description="Make the key pairs of a job, or list them by role. Keys are never printed.",
    )
    make = add_command(
        of_keys, "make", _keys_make, help="make the key pairs of a new job",
        description="Make a directory with the key pairs of a new job: one for workers, one for "
        "its owner, one for observers. Existing keys are never replaced.",
    )  # fmt: skip
    make.add_argument("directory", metavar="DIRECTORY", help="where to put the keys")
    make.add_argument("--job", default="", metavar="NAME", help="a name to recognize the job by")
    show = add_command(
        of_keys, "show", _keys_show, help="list the keys of a job by role and fingerprint",
        description="List the keys of a job by role and fingerprint, and whether each can be used "
        "on this host.",
    )  # fmt: skip
    show.add_argument(
        "directory", metavar="DIRECTORY", help="the directory of the keys, or its file job.public"
    )


def _add_reach(commands: Commands) -> None:
    reach = add_command(
        commands,
        "reach",
        _reach,
        help="check that two hosts can work together: addresses, keys, versions, speed",
        description="On one host: `monarch reach --keys DIRECTORY --listen tcp://*:26600`. On "
        "another: `monarch reach --keys DIRECTORY tcp://HOST:26600`. Exits with 1 and prints why "
        "if the hosts cannot work together.",
    )
    mode = reach.add_mutually_exclusive_group(required=True)
    mode.add_argument(
        "addresses", nargs="*", default=[], metavar="ADDRESS",
        help="where the other host listens; the first that answers is used",
    )  # fmt: skip
    mode.add_argument("--listen", metavar="ADDRESS", help="listen at this address (or DIAL@BIND)")
    add_identity(reach, "the key file to dial with (default: owner.key)")
    reach.add_argument("--audit", metavar="FILE", help="log accepted and refused peers to FILE")
    reach.add_argument("--once", action="store_true", help="exit when the first peer has left")
    add_timeout(reach, WAIT_S, "seconds to try for")
    reach.add_argument(
        "--size", type=int, default=64, metavar="MIB",
        help="MiB to send to measure the bandwidth (default: %(default)d; 0: do not measure)",
    )  # fmt: skip


def _add_worker(commands: Commands) -> None:
    worker = add_command(
        commands,
        "worker",
        _worker,
        help="make this host a worker, which clients use through attach_to_workers",
        description="Serve this host to one client after another: wait for a client, run the "
        "processes that it spawns, and end them when it releases the host or is lost. Exits when a "
        "client shuts the worker down, on Ctrl-C and on SIGTERM. Example: "
        "`monarch worker --address 'tcp://*:26600' --keys DIRECTORY`",
    )
    worker.add_argument(
        "--address", required=True, metavar="ADDRESS",
        help="listen at tcp://HOST:PORT, tcp://*:PORT or ipc://PATH; DIAL@BIND listens at BIND "
        "and has others dial DIAL",
    )  # fmt: skip
    add_identity(worker, "the key file to serve with (default: worker.key in that directory)")
    worker.add_argument(
        "--audit", metavar="FILE", help="log accepted and refused peers and their actions to FILE"
    )
    worker.add_argument(
        "--grace", type=float, default=0.0, metavar="SECONDS",
        help="at SIGTERM, hand it on to ranks that handle it, and give all ranks so long to end "
        "(default: their time for clean-up)",
    )  # fmt: skip


def _add_job(commands: Commands) -> None:
    of_job = add_group(
        commands,
        "job",
        help="list, show and end jobs: hosts that are reserved for several programs",
        description="List your jobs, show one, or release its hosts. JOB is a name, as in "
        "job.state(job_path(NAME)), or the path of a record.",
    )
    add_command(
        of_job, "list", _job_list, help="list the named jobs and the job of this directory",
        description="List the named jobs and the job recorded in this directory.",
    )  # fmt: skip
    shown = add_command(
        of_job, "show", _job_show, help="show the hosts of a job and whether they answer",
        description="Show a job: its record, its hosts, and whether they answer.",
    )  # fmt: skip
    shown.add_argument("which", metavar="JOB", help="a name or the path of a record")
    ended = add_command(
        of_job, "kill", _job_kill, help="release the hosts of a job; their processes end",
        description="Release the hosts of a job and remove its record. Processes that run on them "
        "end. Exits with 1 and keeps the record if a host could not be released.",
    )  # fmt: skip
    ended.add_argument("which", metavar="JOB", help="a name or the path of a record")


def _add_apply(commands: Commands) -> None:
    apply = add_command(
        commands, "apply", _apply, help="reserve the hosts of a job, for the current context",
        description="Reserve the hosts of a job object, and note it for the current context of "
        "this directory: `monarch exec`, `shell` and `kill`, and programs that call job.state(), "
        "use it. Hosts that are reserved already, and suit the job, are kept. "
        "Example: `monarch apply jobs.training`",
    )  # fmt: skip
    apply.add_argument(
        "spec", nargs="?", metavar="MODULE.JOB",
        help="the job object, in a module that can be imported here; default: the last one",
    )  # fmt: skip


def _add_context(commands: Commands) -> None:
    of_context = add_group(
        commands, "context", help="make, choose, remove and list contexts: several jobs by name",
        description="A directory has a current job, in the context `default`. Others have names of "
        "their own.",
    )  # fmt: skip
    for name, run, text in (
        ("create", _context_create, "make a context"),
        ("use", _context_use, "make a context the current one"),
        ("rm", _context_remove, "remove a context whose job has no hosts"),
    ):
        one = add_command(of_context, name, run, help=text, description=f"{text.capitalize()}.")
        one.add_argument("name", metavar="NAME")
    text = "list the contexts of this directory; * marks the current one"
    add_command(of_context, "ls", _context_list, help=text, description=f"{text.capitalize()}.")


def _add_exec(commands: Commands) -> None:
    one = add_command(
        commands, "exec", _exec, help="run a command on the hosts of a job, or on this host",
        description="Run a command on rank 0 of a mesh of hosts, or on more of them, and print its "
        "output here. The hosts are those of the current context's job, or this one if there is no "
        "such job. The exit status is the highest of all ranks. "
        "Example: `monarch exec --job training --all -- nvidia-smi -L`",
    )  # fmt: skip
    _add_hosts(one)
    where = one.add_mutually_exclusive_group()
    where.add_argument("--all", action="store_true", dest="everywhere", help="run on all ranks")
    where.add_argument("--one", action="store_true", help="run on rank 0 (this is the default)")
    where.add_argument(
        "--point", metavar="DIM=N,...", help="run on the ranks with these coordinates"
    )
    one.add_argument("--per-host", metavar="DIM=N,...", help="run several times on each host")
    one.add_argument(
        "--output-dir", metavar="DIRECTORY",
        help="write the output of rank N to rank_N.log there, on its host",
    )  # fmt: skip
    program = one.add_mutually_exclusive_group()
    program.add_argument(
        "-m", dest="module", metavar="MODULE",
        help="run this module of Python there; the words are its arguments",
    )  # fmt: skip
    program.add_argument(
        "--script", metavar="FILE",
        help="run this script of bash instead (-: standard input); the words are its arguments",
    )  # fmt: skip
    one.add_argument("argv", nargs="*", metavar="COMMAND", help="the command and its arguments")


def _add_shell(commands: Commands) -> None:
    one = add_command(
        commands, "shell", _shell, help="an interactive shell on a host of a job, or on this host",
        description="Run a shell on one host, in this terminal. The hosts are those of the current "
        "context's job, or this one if there is no such job. The exit status is that of the shell.",
    )  # fmt: skip
    _add_hosts(one)
    one.add_argument(
        "--point", metavar="DIM=N,...", help="the coordinates of the host (default: the first)"
    )
    one.add_argument("argv", nargs="*", metavar="COMMAND", help="run this in place of a shell")


def _add_hosts(parser: argparse.ArgumentParser) -> None:
    """Add the options that `exec` and `shell` share."""
    parser.add_argument(
        "--job", metavar="JOB[:MESH]",
        help="the name of a job, or the path of its record (default: the current context's)",
    )  # fmt: skip
    parser.add_argument("--mesh", metavar="NAME", help="the mesh of the job (default: the first)")
    parser.add_argument("--here", action="store_true", help="this machine, whatever is current")
    parser.add_argument(
        "-e", "--env", action="append", default=[], metavar="NAME=VALUE", help="set a variable"
    )
    parser.add_argument("--workdir", metavar="DIRECTORY", help="the directory to run in")
    parser.add_argument("--kill", action="store_true", help="end the job afterwards")


def _add_torchrun(commands: Commands) -> None:
    add_command(
        commands, "torchrun", _torchrun,
        help="run a script on ranks, with the options of torchrun (needs torch)",
    )  # fmt: skip


def _apply(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import apply

    return apply.run(arguments.spec)


def _context_create(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import context

    return context.run_create(arguments.name)


def _context_use(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import context

    return context.run_use(arguments.name)


def _context_remove(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import context

    return context.run_remove(arguments.name)


def _context_list(_arguments: argparse.Namespace) -> int:
    from monarch._src.cli import context

    return context.run_list()


def _exec(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import exec as command

    return command.run(
        arguments.argv, arguments.job, arguments.env, everywhere=arguments.everywhere,
        point=arguments.point, per_host=arguments.per_host, workdir=arguments.workdir,
        output_dir=arguments.output_dir, mesh=arguments.mesh, here=arguments.here,
        script=arguments.script, module=arguments.module, kill=arguments.kill,
    )  # fmt: skip


def _shell(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import shell

    return shell.run(
        arguments.job, arguments.mesh, arguments.point, arguments.env, arguments.workdir,
        arguments.argv, here=arguments.here, kill=arguments.kill,
    )  # fmt: skip


def _torchrun(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import torchrun

    return torchrun.run(arguments.words)


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

    return worker.run(
        arguments.address, arguments.keys, arguments.key, arguments.audit, arguments.grace
    )


def _job_list(_arguments: argparse.Namespace) -> int:
    from monarch._src.cli import job

    return job.run_list()


def _job_show(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import job

    return job.run_show(arguments.which)


def _job_kill(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import job

    return job.run_kill(arguments.which)
