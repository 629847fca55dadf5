"""Completion of words after `%monarch`, of queries, and of the dims of a mesh in a line of code.

Runs in: the kernel, as one of IPython's matchers. It looks names up and evaluates nothing.
A cell of `%%monarch sql` that is being written is no query yet, so its words are read without a
parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, cast

from IPython.core import completer

from monarch.actor import ActorMesh, HostMesh, ProcMesh, ValueMesh
from monarch.observe import query_tables
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.table import COMMANDS
from monarch_jupyter.meshes.registry import find_mesh

_MAGIC = re.compile(r"\s*%?%monarch(?P<rest>\s.*)\Z")
_INSIDE = re.compile(r"(?P<name>[^\s\[\],]+)\[(?P<inside>[^\[\]]*)\Z")
_CALL = re.compile(r"(?P<name>[A-Za-z_]\w*)\.(?:slice|split|rename)\((?P<inside>[^()]*)\Z")
_LAST = re.compile(r"[^\s,\[]*\Z")

Completions = tuple[str, list[str]]
"""The text to replace, and its replacements."""


class Completion:
    """The matcher in one shell, from `install` until `restore`."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._matchers: list[Any] = shell.Completer.custom_matchers
        self._matcher = self._as_matcher()

    def install(self) -> None:
        """Add the matcher to IPython's own."""
        self._matchers.append(self._matcher)

    def restore(self) -> None:
        """Remove the matcher. Idempotent."""
        if self._matcher in self._matchers:
            self._matchers.remove(self._matcher)

    def _as_matcher(self) -> Any:
        def monarch(context: Any) -> dict[str, Any]:
            return self._match(context)

        return cast("Any", completer).context_matcher()(monarch)

    def _match(self, context: Any) -> dict[str, Any]:
        text, namespace = context.text_until_cursor, self._shell.user_ns
        found = complete_magic(text, namespace)
        if found is None:
            before = context.full_text.split("\n")[: context.cursor_line]
            cursor = sum(len(line) + 1 for line in before) + context.cursor_position
            found = complete_sql(context.full_text, cursor, query_tables())
        # A line of the magic, and a query, have no Python in them; a line of code may want both.
        ours = found is not None
        begun, words = found or complete_dims(text, namespace) or ("", [])
        return {
            "completions": [
                completer.SimpleCompletion(text=word, type="monarch") for word in words
            ],
            "matched_fragment": begun,
            "suppress": ours,
            "ordered": True,
        }


def complete_magic(text: str, namespace: MutableMapping[str, object]) -> Completions | None:
    """For a line of `%monarch` or `%%monarch`, up to the cursor; None for any other."""
    match = _MAGIC.match(text)
    return complete_line(match["rest"], namespace) if match else None


def complete_line(text: str, namespace: MutableMapping[str, object]) -> Completions:
    """For the text after `%monarch`, up to the cursor."""
    inside = _INSIDE.search(text)
    if inside is not None:
        return _dims_after(inside["inside"], _sizes_by_name(inside["name"], namespace))
    words = text.split()
    begun = words.pop() if words and not text.endswith((" ", "\t")) else ""
    option = _option_of_value(words, begun)
    if option is not None:
        begun = re.split("[,=]", begun)[-1]
        known = [] if option.complete is None else option.complete(namespace)
    elif not words:
        known = [*COMMANDS, "-h"]
    elif words[0] in COMMANDS:
        known = _next_words(words[0], words[1:], namespace)
    else:
        known = []
    return begun, [word for word in known if word.startswith(begun)]


def _next_words(
    name: str, words: Sequence[str], namespace: MutableMapping[str, object]
) -> list[str]:
    command = COMMANDS[name]
    options = {option.name: option for option in command.options}
    plain, _ = _sorted_words(options, words)
    left = [
        name
        for name, option in options.items()
        if option.repeated or not any(word.partition("=")[0] == name for word in words)
    ]
    return [*command.complete(plain, namespace), *left, "-h"]


def _option_of_value(words: Sequence[str], begun: str) -> Option | None:
    """The option whose value is being typed, if one is."""
    if not words or words[0] not in COMMANDS:
        return None
    options = {option.name: option for option in COMMANDS[words[0]].options}
    name, equals, _ = begun.partition("=")
    if equals and name in options:
        return options[name]
    return _sorted_words(options, words[1:])[1]


def _sorted_words(
    options: Mapping[str, Option], words: Sequence[str]
) -> tuple[list[str], Option | None]:
    """The words that belong to no option, and the option whose value comes next, if one does."""
    plain: list[str] = []
    value_of: Option | None = None
    for word in words:
        option = options.get(word.partition("=")[0])
        if value_of is not None:
            value_of = None
        elif option is not None:
            value_of = option if option.takes is not None and "=" not in word else None
        else:
            plain.append(word)
    return plain, value_of


def complete_dims(text: str, namespace: MutableMapping[str, object]) -> Completions | None:
    """The dims in `workers.slice(`, `split(` and `rename(` of a variable; None elsewhere."""
    call = _CALL.search(text)
    if call is None:
        return None
    value = namespace.get(call["name"])
    if not isinstance(value, ActorMesh | HostMesh | ProcMesh | ValueMesh):
        return None
    return _dims_after(call["inside"], list(cast("ProcMesh", value).sizes))


def _dims_after(inside: str, dims: Sequence[str]) -> Completions:
    given = {part.partition("=")[0].strip() for part in inside.split(",")[:-1]}
    found = _LAST.search(inside.split(",")[-1])
    begun = found[0] if found is not None else ""
    return begun, [f"{d}=" for d in dims if d not in given and f"{d}=".startswith(begun)]


def _sizes_by_name(name: str, namespace: MutableMapping[str, object]) -> list[str]:
    try:
        return list(find_mesh(name, namespace).sizes)
    except CommandError:
        return []


_HEAD = re.compile(r"\s*%%monarch\s+sql\b[^\n]*\n")
_WORD = re.compile(r"(?:(?P<of>\w+)\.)?(?P<begun>\w*)\Z")
_TABLES_FOLLOW = re.compile(
    r"\b(?:from|join|describe|summarize)\s+(?:\w+\s*,\s*)*\w*\Z", re.IGNORECASE
)
_SOURCE = re.compile(r"(?P<table>\w+)(?:\s+(?:as\s+)?(?P<alias>\w+))?", re.IGNORECASE)
_NAMES = re.compile(
    r"\b(?:from|join)\s+(?P<sources>\w+(?:\s+(?:as\s+)?\w+)?(?:\s*,\s*\w+(?:\s+\w+)?)*)",
    re.IGNORECASE,
)
_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "JOIN", "USING", "GROUP BY", "ORDER BY", "LIMIT", "SHOW TABLES",
    "DESCRIBE",
)  # fmt: skip

Tables = Mapping[str, Iterable[str]]
"""The columns of each table."""


def complete_sql(cell: str, cursor: int, tables: Tables) -> tuple[str, list[str]] | None:
    """The word that is begun at the cursor, and its completions; None if the cell is no SQL."""
    head = _HEAD.match(cell)
    if head is None or cursor < head.end():
        return None
    before, query = cell[head.end() : cursor], cell[head.end() :]
    word = _WORD.search(before)
    begun = word["begun"] if word is not None else ""
    if word is not None and word["of"] is not None:
        table = _aliases(query, tables).get(word["of"].lower())
        return begun, _beginning(begun, tables[table] if table is not None else ())
    if _TABLES_FOLLOW.search(before):
        return begun, _beginning(begun, tables)
    named = dict.fromkeys(_aliases(query, tables).values())
    columns = [column for table in named or tables for column in tables[table]]
    return begun, _beginning(begun, [*dict.fromkeys([*columns, *tables]), *_KEYWORDS])


def _aliases(query: str, tables: Tables) -> dict[str, str]:
    """The tables that the query names, by their names there."""
    found: dict[str, str] = {}
    for source in _NAMES.finditer(query):
        for part in source["sources"].split(","):
            match = _SOURCE.match(part.strip())
            if match is not None and match["table"].lower() in tables:
                table = match["table"].lower()
                found[table] = table
                if match["alias"] is not None:
                    found[match["alias"].lower()] = table
    return found


def _beginning(begun: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.lower().startswith(begun.lower())]
