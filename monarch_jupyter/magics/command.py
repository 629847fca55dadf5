"""What every subcommand of `%monarch` is made of. No I/O."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field

from monarch_jupyter.magics.arguments import Arguments, Option


@dataclass(frozen=True)
class Invocation:
    """One use of a subcommand: what the line said, the notebook's variables, and the cell below it.

    `number` is the cell's execution count, by which the notebook shows it.
    """

    arguments: Arguments
    namespace: MutableMapping[str, object]
    cell: str | None = None
    number: int = 0


@dataclass(frozen=True)
class Command:
    """A subcommand: its name, how it is written, what it does in one line, and what runs it.

    `run` returns what the magic returns, None to show nothing. `complete` gives the words that
    could come next, from those before that are no options, and the variables; options complete by
    themselves. `takes_cell` says whether it is a magic of a whole cell.
    """

    name: str
    usage: str
    summary: str
    run: Callable[[Invocation], object]
    options: tuple[Option, ...] = ()
    examples: tuple[str, ...] = ()
    takes_cell: bool = False
    complete: Callable[[Sequence[str], MutableMapping[str, object]], list[str]] = field(
        default=lambda words, namespace: []
    )

    def help(self) -> str:
        """What `-h` prints."""
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
