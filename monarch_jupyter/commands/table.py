"""All subcommands of `%monarch`, in the order in which the help lists them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

from monarch_jupyter.arguments import parse_arguments, split_words
from monarch_jupyter.commands import doctor, error, ls, on, show, spawn, stop
from monarch_jupyter.commands.command import Command, Invocation
from monarch_jupyter.problems import CommandError, did_you_mean

COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        spawn.COMMAND,
        on.COMMAND,
        ls.COMMAND,
        show.COMMAND,
        stop.COMMAND,
        error.COMMAND,
        doctor.COMMAND,
    )
}


def run_line(
    line: str,
    namespace: MutableMapping[str, object],
    cell: str | None = None,
    number: int = 0,
    say: Callable[[str], object] = print,
) -> object:
    """Do what a line after `%monarch`, or with its cell after `%%monarch`, asks.

    Help goes to `say`.

    Raises:
        CommandError: it can't be done; its text is one line with the remedy.
    """
    words = split_words(line)
    if not words or words[0] in ("-h", "--help", "help"):
        say(overview())
        return None
    name, *rest = words
    command = COMMANDS.get(name)
    if command is None:
        near = did_you_mean(name, COMMANDS)
        remedy = near or f"; there are {', '.join(COMMANDS)}"
        raise CommandError(f"monarch has no subcommand '{name}'{remedy}")
    if "-h" in rest or "--help" in rest:
        say(command.help())
        return None
    if cell is not None and not command.takes_cell:
        raise CommandError(f"{name} takes no cell: write %monarch {name}, with a single %")
    arguments = parse_arguments(name, rest, command.options)
    return command.run(Invocation(arguments, namespace, cell, number))


def overview() -> str:
    """Every subcommand on a line."""
    width = max(len(command.usage) for command in COMMANDS.values()) + 2
    lines = ["%monarch SUBCOMMAND, each with -h for its help"]
    for command in COMMANDS.values():
        magic = "%%" if command.takes_cell else "%"
        lines.append(f"  {magic}monarch {command.usage}".ljust(width + 11) + command.summary)
    return "\n".join(lines)


def complete_line(text: str, namespace: MutableMapping[str, object]) -> list[str]:
    """Words that could take the place of the last one in `text`, what stands after `%monarch`."""
    words = text.split()
    begun = words.pop() if words and not text.endswith((" ", "\t")) else ""
    if not words:
        known = list(COMMANDS)
    elif words[0] in COMMANDS:
        known = [*COMMANDS[words[0]].complete(words[1:], namespace), "-h"]
    else:
        known = []
    return [word for word in known if word.startswith(begun)]
