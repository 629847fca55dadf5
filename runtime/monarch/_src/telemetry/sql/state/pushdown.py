"""The needs of a query: of each table the columns, conditions and number of rows. No I/O.

DuckDB parses a query and returns its syntax tree as JSON (`json_serialize_sql`). The tree is read
here so that agents send as little as possible. DuckDB runs the whole query on the rows that arrive,
so the needs may include more than the query uses, and must never include less:

- a column is needed if its name occurs anywhere in the tree, and all are needed after a `*`;
- a condition of a WHERE clause is passed on if it compares a column of a table with a constant and
  the rows that it excludes cannot change the result: the table occurs once in the query, and the
  FROM clause has ordinary joins only. The excluded rows would fail the WHERE clause themselves; an
  outer join may put NULLs in their place, which fail it as well;
- a view needs all rows and columns of its tables;
- LIMIT is passed on if the query has one table and nothing between its rows and the limit.

DuckDB's tree has changed between versions. A part that is not recognized is not passed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from monarch._src.telemetry.sql.state.columns import Table
from monarch._src.telemetry.sql.state.views import View
from monarch._src.wire.messages import Condition

_QUERIES = frozenset({
    "SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE",
})  # fmt: skip
_COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "!=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_SWAPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_JOINS = frozenset({"INNER", "LEFT", "RIGHT", "OUTER", "FULL"})
_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UBIGINT", "HUGEINT"})
_OPAQUE = frozenset({"query", "query_table"})
"""Table functions that read tables which the tree does not name."""


class RefusedQueryError(ValueError):
    """The query is no plain SELECT over tables that it names."""


@dataclass(frozen=True)
class Need:
    """The rows and columns of one table that a query needs. `limit` -1: all rows.

    Conditions on `session` and `host` tell which agents to ask; the others are for these agents.
    """

    columns: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    limit: int = -1


class _Ref(NamedTuple):
    """A table in a FROM clause, and the name by which its columns are qualified."""

    table: Table
    name: str


@dataclass
class _Seen:
    """Facts about a whole tree. Names are in lower case."""

    strings: set[str] = field(default_factory=set[str])
    aliases: set[str] = field(default_factory=set[str])
    ctes: set[str] = field(default_factory=set[str])
    references: list[str] = field(default_factory=list[str])
    column_refs: list[list[str]] = field(default_factory=list[list[str]])
    selects: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    has_star: bool = False


def needs_of(
    statement: Mapping[str, Any],
    tables: Mapping[str, Table],
    views: Mapping[str, View] = MappingProxyType({}),
) -> dict[str, Need]:
    """The needs of one serialized statement, by the name of the table.

    The tables of a view are needed as a whole.

    Raises:
        RefusedQueryError: it changes tables, or reads tables that it does not name.
    """
    seen = _Seen()
    for node in _walk(statement):
        _enter(node, seen)
    behind = {
        source for name in set(seen.references) if name in views for source in views[name].sources
    }
    seen.references += 2 * sorted(behind)  # no condition on them is passed on
    wanted = {name for name in seen.references if name in tables}
    whole = seen.has_star or any(
        part in seen.aliases for parts in seen.column_refs for part in parts[-1:]
    )
    conditions: dict[str, tuple[Condition, ...]] = {}
    limits: dict[str, int] = {}
    for select in seen.selects:
        sources = _refs(select.get("from_table"), tables)
        if sources is None or select.get("sample") is not None:
            continue
        refs = [
            ref
            for ref in sources
            if ref.table.name not in seen.ctes and seen.references.count(ref.table.name) == 1
        ]
        where = select.get("where_clause")
        found = dict(_conditions(where, sources, _of_all(select, tables)))
        for ref in refs:
            conditions[ref.table.name] = tuple(found.get(ref.table.name, ()))
        if len(seen.selects) == len(refs) == 1:
            limit = _limit(select, refs[0].table, tables)
            if limit is not None and statement.get("node") is select:
                limits[refs[0].table.name] = limit
    return {
        name: Need(
            _columns(tables[name], None if whole or name in behind else seen.strings),
            conditions.get(name, ()),
            limits.get(name, -1),
        )
        for name in sorted(wanted)
    }


def _columns(table: Table, names: set[str] | None) -> tuple[str, ...]:
    """The columns of these names (None: all), with one that the source sends to count the rows."""
    found = [column.name for column in table.columns if names is None or column.name in names]
    if not any(column.name in found for column in table.sent):
        found.append(table.sent[0].name)
    return tuple(found)


def _walk(value: Any) -> Iterator[Any]:
    """All values in a tree, except keys and the kinds of nodes."""
    pending = [value]
    while pending:
        one = pending.pop()
        yield one
        if isinstance(one, dict):
            tree = cast("dict[str, Any]", one)
            if tree.get("type") == "SHOW_REF" and tree.get("show_type") == "DESCRIBE":
                continue  # it lists columns and reads no rows
            pending += [inner for key, inner in tree.items() if key not in ("class", "type")]
        elif isinstance(one, list):
            pending += cast("list[Any]", one)


def _enter(value: Any, seen: _Seen) -> None:
    if isinstance(value, str):
        seen.strings.add(value.lower())
    node = _node(value)
    if node is None:
        return
    kind, cls = node.get("type"), node.get("class")
    if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERIES:
        raise RefusedQueryError("only queries are run here, and this one changes a table")
    if cls == "FUNCTION" and str(node.get("function_name")).lower() in _OPAQUE:
        name = node["function_name"]
        raise RefusedQueryError(f"{name}() hides which tables it reads; write the query itself")
    if cls in ("STAR", "POSITIONAL_REFERENCE") or node.get("ref_type") == "NATURAL":
        seen.has_star = True
    elif cls == "COLUMN_REF":
        seen.column_refs.append(_path(node))
    elif kind == "SHOW_REF":
        seen.has_star = True
    elif kind == "BASE_TABLE":
        name = str(node.get("table_name", "")).lower()
        seen.references.append(name)
        seen.aliases.update((name, str(node.get("alias", "")).lower()))
    elif kind == "SELECT_NODE":
        seen.selects.append(node)
    names = _node(node.get("cte_map"))
    if names is not None:
        entries = cast("list[dict[str, Any]]", names.get("map", []))
        seen.ctes.update(str(entry.get("key", "")).lower() for entry in entries)


def _node(value: Any) -> dict[str, Any] | None:
    """The value, if it is a node."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _path(node: dict[str, Any]) -> list[str]:
    """The parts of the name of a column."""
    return [str(part).lower() for part in cast("list[object]", node.get("column_names", []))]


def _refs(source: Any, tables: Mapping[str, Table]) -> list[_Ref] | None:
    """The tables of a FROM clause; None if conditions on them must not be passed on.

    Subqueries and other tables are left out of the list.
    """
    tree = _node(source)
    if tree is None:
        return []
    if tree.get("sample") is not None:
        return None
    kind = tree.get("type")
    if kind == "JOIN":
        if tree.get("ref_type") not in ("REGULAR", "CROSS"):
            return None
        if tree.get("ref_type") == "REGULAR" and tree.get("join_type") not in _JOINS:
            return None
        left, right = _refs(tree.get("left"), tables), _refs(tree.get("right"), tables)
        return None if left is None or right is None else [*left, *right]
    if kind == "BASE_TABLE":
        table = tables.get(str(tree.get("table_name", "")).lower())
        plain = tree.get("schema_name") in ("", "main") and not tree.get("column_name_alias")
        if table is None or not plain:
            return []
        return [_Ref(table, (str(tree.get("alias", "")) or table.name).lower())]
    return [] if kind in ("SUBQUERY", "EMPTY") else None


def _of_all(select: dict[str, Any], tables: Mapping[str, Table]) -> list[_Ref] | None:
    """The tables of a FROM clause that has nothing else; None if it has."""
    refs: list[_Ref] = []
    pending: list[Any] = [select.get("from_table")]
    while pending:
        source = pending.pop()
        if source.get("type") == "JOIN":
            pending += [source.get("left"), source.get("right")]
            continue
        found = _refs(source, tables)
        if source.get("type") != "BASE_TABLE" or not found:
            return None
        refs += found
    return refs


def _conditions(
    where: Any, named: list[_Ref], alone: list[_Ref] | None
) -> dict[str, list[Condition]]:
    """The conditions that every row of a table has to meet, by the name of the table.

    `named`: the tables that the name of a column may name first. `alone`: the tables to which a
    column without one can belong; None if other sources have columns too.
    """
    found: dict[str, list[Condition]] = {}
    for part in _conjuncts(where):
        for path, operator, constants in _comparisons(part):
            refs = named if len(path) > 1 else alone
            table = None if refs is None else _table_of(path, refs)
            if table is None:
                continue
            column = next((one for one in table.columns if one.name == path[-1]), None)
            if column is None or column.type == "BOOLEAN":
                continue
            if all(isinstance(value, str) == (column.type == "VARCHAR") for value in constants):
                condition = Condition(column.name, operator, constants)
                found.setdefault(table.name, []).append(condition)
    return found


def _conjuncts(where: Any) -> Iterator[dict[str, Any]]:
    tree = _node(where)
    if tree is None:
        return
    if tree.get("type") == "CONJUNCTION_AND":
        for child in tree.get("children", []):
            yield from _conjuncts(child)
    else:
        yield tree


def _comparisons(tree: dict[str, Any]) -> list[tuple[list[str], str, list[int | float | str]]]:
    """The comparisons of a column with constants that the expression consists of."""
    kind = tree.get("type")
    if kind in _COMPARISONS:
        operator, left, right = _COMPARISONS[kind], tree.get("left"), tree.get("right")
        path, constant = _column(left), _constant(right)
        if path is None:
            path, constant, operator = _column(right), _constant(left), _SWAPPED[operator]
        return [] if path is None or constant is None else [(path, operator, [constant])]
    if kind == "COMPARE_BETWEEN":
        path = _column(tree.get("input"))
        bounds = ((">=", _constant(tree.get("lower"))), ("<=", _constant(tree.get("upper"))))
        if path is None:
            return []
        return [(path, operator, [value]) for operator, value in bounds if value is not None]
    if kind == "COMPARE_IN":
        children: list[Any] = tree.get("children", [])
        path = _column(children[0]) if children else None
        values = [_constant(child) for child in children[1:]]
        constants: list[int | float | str] = [value for value in values if value is not None]
        if path is not None and constants and len(constants) == len(values):
            return [(path, "in", constants)]
    return []


def _column(value: Any) -> list[str] | None:
    """The name of the column that the expression is; None for anything else."""
    node = _node(value)
    return _path(node) if node is not None and node.get("class") == "COLUMN_REF" else None


def _constant(value: Any) -> int | str | None:
    """The integer or the text that a constant is; None for anything else."""
    node = _node(value)
    if node is None or node.get("class") != "CONSTANT":
        return None
    literal, boxed = _node(node.get("literal")), _node(node.get("value"))
    found: Any = None
    if literal is not None:  # since DuckDB 2
        text = literal.get("text")
        if literal.get("kind") == "STRING":
            found = text
        elif literal.get("kind") == "INTEGER" and isinstance(text, str):
            found = _integer(text)
    elif boxed is not None and not boxed.get("is_null"):
        kind, inner = (_node(boxed.get("type")) or {}).get("id"), boxed.get("value")
        is_integer = kind in _INTEGERS and type(inner) is int
        if is_integer or (kind == "VARCHAR" and isinstance(inner, str)):
            found = inner
    if isinstance(found, int) and not -(1 << 63) <= found < 1 << 64:
        return None
    return found if isinstance(found, (int, str)) else None


def _integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() else None


def _table_of(path: list[str], refs: list[_Ref]) -> Table | None:
    """The only table that the column can belong to."""
    if len(path) > 2:
        return None
    named = refs if len(path) == 1 else [ref for ref in refs if ref.name == path[0]]
    found = [ref.table for ref in named if any(c.name == path[-1] for c in ref.table.columns)]
    return found[0] if len(found) == 1 else None


def _limit(select: dict[str, Any], table: Table, tables: Mapping[str, Table]) -> int | None:
    """How many rows are enough; None if that is not known."""
    source, modifiers = select.get("from_table", {}), select.get("modifiers", [])
    if source.get("type") != "BASE_TABLE" or len(modifiers) != 1:
        return None
    modifier: dict[str, Any] = modifiers[0]
    if modifier.get("type") != "LIMIT_MODIFIER":
        return None
    if modifier.get("limit_type", "ROW_COUNT") != "ROW_COUNT":
        return None
    between = ("group_expressions", "group_sets", "having", "qualify", "sample")
    if any(select.get(name) for name in between):
        return None
    if select.get("aggregate_handling") != "STANDARD_HANDLING":
        return None
    plain = ("COLUMN_REF", "STAR", "CONSTANT")
    if any(
        one.get("class") not in plain or one.get("columns") for one in select.get("select_list", [])
    ):
        return None
    parts = list(_conjuncts(select.get("where_clause")))
    refs = _refs(source, tables) or []
    found = _conditions(select.get("where_clause"), refs, refs).get(table.name, [])
    passed_on = [one for one in found if any(column.name == one.column for column in table.sent)]
    # A BETWEEN is passed on as two conditions.
    expected = sum(2 if part.get("type") == "COMPARE_BETWEEN" else 1 for part in parts)
    if expected != len(passed_on):
        return None
    rows, offset = _constant(modifier.get("limit")), modifier.get("offset")
    skipped = 0 if offset is None else _constant(offset)
    if not isinstance(rows, int) or not isinstance(skipped, int) or rows < 0 or skipped < 0:
        return None
    total = rows + skipped
    return total if total < 1 << 62 else None
