"""The words after a magic, split into positionals and options. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from monarch_jupyter.errors import CommandError, did_you_mean


@dataclass(frozen=True)
class Option:
    """One option of a command.

    `takes` names its value in the help (`None`: the option is a switch). A `repeated` option may
    be given several times. `complete` gives the possible values, from the notebook's variables; the
    value may be several of them with commas in between.
    """

    name: str
    help: str
    takes: str | None = None
    repeated: bool = False
    complete: Callable[[Mapping[str, object]], list[str]] | None = None


@dataclass(frozen=True)
class Arguments:
    """A parsed line: its positionals in order, and the values of each given option."""

    positionals: tuple[str, ...]
    options: dict[str, tuple[str, ...]]

    def has(self, option: str) -> bool:
        """Whether the option was given at all."""
        return option in self.options

    def values(self, option: str) -> tuple[str, ...]:
        """The values of an option in the order given; empty when it was not."""
        return self.options.get(option, ())


def whole_number(option: str, value: str, least: int = 1) -> int:
    """The value of an option that takes a whole number.

    Raises:
        CommandError: the value is none, or less than `least`.
    """
    if not value.isdecimal() or int(value) < least:
        raise CommandError(f"{option} {value}: give a whole number from {least} up")
    return int(value)


def split_words(line: str) -> list[str]:
    """The words of a magic's line. Quotes group words, and a trailing comment is dropped.

    Raises:
        CommandError: a quote is not closed.
    """
    try:
        return shlex.split(_without_comment(line))
    except ValueError as error:
        raise CommandError(f"{line.strip()}: {str(error).lower()}; close the quote") from None


def _without_comment(line: str) -> str:
    """The line up to a `#` where a word begins; `shlex` would take one within a word too."""
    quote, before, escaped = "", " ", False
    for at, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and before.isspace():
            return line[:at]
        before = char
    return line


def parse_arguments(command: str, words: Sequence[str], known: Sequence[Option]) -> Arguments:
    """Sort `words` into positionals and `known` options, as `--name=value` or `--name value`.

    Raises:
        CommandError: an unknown option, a value that is missing or not wanted, a switch given
        twice.
    """
    options = {option.name: option for option in known}
    positionals: list[str] = []
    given: dict[str, list[str]] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            positionals.append(word)
            continue
        name, equals, value = word.partition("=")
        option = options.get(name)
        if option is None:
            near = did_you_mean(name.lstrip("-"), [known.lstrip("-") for known in options])
            remedy = near or f"; `%monarch {command} -h` lists its options"
            raise CommandError(f"{command} has no option {name}{remedy}")
        if name in given and not option.repeated:
            raise CommandError(f"{name} is given twice; give it once")
        values = given.setdefault(name, [])
        if option.takes is None:
            if equals:
                raise CommandError(f"{name} takes no value; write {name} alone")
        elif equals:
            values.append(value)
        elif rest and not rest[0].startswith("-"):
            values.append(rest.pop(0))
        else:
            raise CommandError(f"{name} needs a value; write {name} {option.takes}")
    return Arguments(tuple(positionals), {name: tuple(values) for name, values in given.items()})
