"""The kinds of a table's parts: columns, sources, and the place of a row. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import msgspec

Type = Literal["BIGINT", "UBIGINT", "DOUBLE", "VARCHAR", "BOOLEAN"]


class Source(enum.Flag):
    """The processes that have rows of a table."""

    AGENT = enum.auto()  # each host agent
    PROCESSES = enum.auto()  # each rank, and the client
    STACKS = enum.auto()  # py-spy, which an agent runs on its ranks
    STORED = enum.auto()  # the admin server, for stored stacks


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    name: str
    type: Type
    doc: str


class ProcessColumns(msgspec.Struct, frozen=True):
    """The columns that name the process of a row: the uid and name of its mesh, and its rank.

    An agent asks only the processes that conditions on these columns leave.
    """

    mesh_id: str
    mesh: str
    rank: str


class Table(msgspec.Struct, frozen=True, dict=True):
    """A table. `sent` are the columns that its source sends, in that order.

    `key`: a column. Rows of several processes with the same value are one row; empty: none are.
    """

    name: str
    doc: str
    source: Source
    place: ProcessColumns | None
    sent: tuple[Column, ...]
    key: str = ""

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, those of the query's process first."""
        return (*ADDED, *self.sent)

    def index(self, column: str) -> int:
        """The index of a sent column. KeyError if there is none of that name."""
        return self._indexes[column]

    @cached_property
    def _indexes(self) -> Mapping[str, int]:
        return {column.name: index for index, column in enumerate(self.sent)}


ADDED = (
    Column("session", "VARCHAR", "the name of the session, as `monarch ps` shows it"),
    Column("host", "VARCHAR", "the host: its name, or the site of a worker"),
)

MESH = (
    Column("mesh_id", "UBIGINT", "the uid of the proc mesh"),
    Column("mesh", "VARCHAR", "the name of the proc mesh; `client` for the client"),
    Column("rank", "BIGINT", "the rank in the proc mesh; 0 for the client"),
)
PLACE = ProcessColumns("mesh_id", "mesh", "rank")
