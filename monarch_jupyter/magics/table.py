"""All subcommands of `%monarch`, in the order in which the help lists them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

from monarch_jupyter.errors import CommandError, did_you_mean
from monarch_jupyter.magics import (
    attach,
    autopx,
    autoreload,
    dashboard,
    debug,
    detach,
    doctor,
    error,
    explain,
    kill,
    logs,
    ls,
    nested_asyncio,
    on,
    ps,
    reap,
    show,
    spawn,
    sql,
    stacks,
    static,
    stop,
    sync,
    torchrun,
    update,
)
from monarch_jupyter.magics.arguments import Arguments, parse_arguments, split_words
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import mesh_names

COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        spawn.COMMAND,
        on.COMMAND,
        autopx.COMMAND,
        ls.COMMAND,
        ps.COMMAND,
        show.COMMAND,
        static.COMMAND,
        stacks.COMMAND,
        stacks.FLAME,
        sql.COMMAND,
        debug.COMMAND,
        torchrun.COMMAND,
        stop.COMMAND,
        spawn.RESTART,
        kill.COMMAND,
        logs.COMMAND,
        update.COMMAND,
        autoreload.COMMAND,
        sync.COMMAND,
        nested_asyncio.COMMAND,
        attach.COMMAND,
        detach.COMMAND,
        reap.COMMAND,
        error.COMMAND,
        explain.COMMAND,
        dashboard.COMMAND,
        doctor.COMMAND,
    )
}


ALIASES = {"query": "sql"}
"""Names of the terminal's commands, and those that these have here."""


def run_line(
    line: str,
    namespace: MutableMapping[str, object],
    cell: str | None = None,
    number: int = 0,
    say: Callable[[str], object] = print,
) -> object:
    """Run the line after `%monarch`, or the line and cell after `%%monarch`.

    Help goes to `say`.

    Raises:
        CommandError: the command is refused; the text is one line with the remedy.
    """
    words = split_words(line)
    if not words or words[0] in ("-h", "--help", "help"):
        say(overview())
        return None
    name, *rest = words
    name = ALIASES.get(name, name)
    command = COMMANDS.get(name)
    if command is None:
        near = did_you_mean(name, COMMANDS)
        mesh = name.partition("[")[0]
        if mesh in mesh_names():
            whole = f"%%monarch on {name}" if cell is not None else f"%monarch show {mesh}"
            near = f", but a mesh; did you mean '{whole}'?"
        remedy = near or f"; there are {', '.join(COMMANDS)}"
        raise CommandError(f"monarch has no subcommand '{name}'{remedy}")
    if {"-h", "--help"}.intersection(rest[:1] if command.verbatim else rest):
        say(command.help())
        return None
    if cell is not None and not (command.takes_cell or command.wraps_cells):
        raise CommandError(f"{name} takes no cell: write %monarch {name}, with a single %")
    arguments = (
        Arguments(tuple(rest), {})
        if command.verbatim
        else parse_arguments(name, rest, command.options)
    )
    return command.run(Invocation(arguments, namespace, cell, number))


def overview() -> str:
    """Every subcommand on a line."""
    width = max(len(command.usage) for command in COMMANDS.values()) + 2
    lines = ["%monarch SUBCOMMAND, each with -h for its help"]
    for command in COMMANDS.values():
        magic = "%%" if command.takes_cell else "%"
        lines.append(f"  {magic}monarch {command.usage}".ljust(width + 11) + command.summary)
    return "\n".join(lines)
