"""The parts of a subcommand of `%monarch`. No I/O."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field

from monarch_jupyter.magics.arguments import Arguments, Option


@dataclass(frozen=True)
class Invocation:
    """One use of a subcommand: its arguments, the notebook's variables, the cell below the line.

    `number` is the cell's execution count, by which the notebook shows it.
    """

    arguments: Arguments
    namespace: MutableMapping[str, object]
    cell: str | None = None
    number: int = 0


@dataclass(frozen=True)
class Command:
    """A subcommand: its name, its usage, its summary in one line, the function that runs it.

    `run` returns the value of the magic, or None to show nothing. `complete` gives the possible
    next words, from the words before that are not options and the notebook's variables; options
    complete without it. `takes_cell` says whether the command is a magic of a whole cell.
    `wraps_cells`: the extension itself calls the command with cells, though users do not. A
    `verbatim` command gets all words as positionals, and reads options itself.
    """

    name: str
    usage: str
    summary: str
    run: Callable[[Invocation], object]
    options: tuple[Option, ...] = ()
    examples: tuple[str, ...] = ()
    takes_cell: bool = False
    wraps_cells: bool = False
    verbatim: bool = False
    complete: Callable[[Sequence[str], MutableMapping[str, object]], list[str]] = field(
        default=lambda words, namespace: []
    )

    def help(self) -> str:
        """The text that `-h` prints."""
        magic = "%%monarch" if self.takes_cell else "%monarch"
        lines = [f"{magic} {self.usage}".rstrip(), f"  {self.summary}"]
        if self.options:
            shown = [f"{o.name} {o.takes}" if o.takes else o.name for o in self.options]
            width = max(len(text) for text in shown)
            lines += [
                f"  {text.ljust(width)}  {option.help}"
                for text, option in zip(shown, self.options, strict=True)
            ]
        lines += [f"  e.g.  {example}" for example in self.examples]
        return "\n".join(lines)
