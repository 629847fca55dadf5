"""Tables of the live state, which host agents and processes answer row by row."""

import msgspec

from monarch._src.wire.messages.base import Message


class Condition(msgspec.Struct, array_like=True, frozen=True):
    """A column compared with a constant; with `in`, with several. NULL never matches."""

    column: str
    operator: str  # = != < <= > >= in
    values: list[int | float | str]


class ReadTable(Message, tag=85):
    """Send these columns of the rows of a table that meet all conditions; answered by TableRead.

    `limit`: the maximal number of rows; -1: no limit. `timeout_s`: how long an agent waits for
    ranks. With `patience_s` it waits so long for idle ranks, which a busy host delays, and
    `timeout_s` after the last answer for others; meanwhile it sends a TableRead each second that
    has `waiting` only. A process ignores all three.
    """

    request: int
    table: str
    columns: list[str]
    conditions: list[Condition]
    limit: int
    timeout_s: float
    patience_s: float = 0.0


class TableRead(Message, tag=86):
    """The answer to ReadTable: `count` rows, with `columns` in the form of `wire.table_codec`.

    `site`: that of the agent. `missing`: processes that are left out, each with the reason.
    `dropped`: rows that did not fit into the message. `problem`: why there are no rows. `waiting`:
    so many processes owe their rows to an agent, which will answer.
    """

    request: int
    site: str = ""
    count: int = 0
    columns: bytes = b""
    missing: list[tuple[str, str]] = []
    dropped: int = 0
    problem: str = ""
    waiting: int = 0


class SetHistory(Message, tag=87):
    """Keep history of calls, messages, spans and log records, at most `rows` of each kind.

    `retention_s` 0: keep none. To a host agent, which tells its processes and answers with an empty
    TableRead. `for_s`: only for that many seconds; negative: an earlier order for a time ends now.
    `torch`: also let torch's profiler run, where torch is imported. The order that ends it keeps
    its events.
    """

    request: int
    retention_s: float
    rows: int
    for_s: float = 0.0
    torch: bool = False
