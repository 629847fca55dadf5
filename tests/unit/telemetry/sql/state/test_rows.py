"""An agent answers a request for rows exactly, and refuses one that makes no sense."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from monarch._src.telemetry.sql.state.rows import (
    Row,
    answer,
    place_meets,
    problem_of,
    wants_before,
)
from monarch._src.telemetry.sql.state.schema import CALLS, LOG_LINES, MESHES, PROCS, TABLES
from monarch._src.telemetry.sql.state.views import VIEWS
from monarch._src.wire.messages import Condition, ReadTable, TableRead
from monarch._src.wire.table_codec import unpacked

COLUMNS = ["number", "rank", "text"]
LINES: list[Row] = [
    (1, 100, 7, "workers", 0, "stdout", "a"),
    (2, 110, 7, "workers", 1, "stderr", "b"),
    (3, 120, 8, "others", 0, "stdout", None),
    (4, 130, 8, "others", 1, "stdout", "d"),
]


def request(
    *conditions: Condition, columns: list[str] = COLUMNS, limit: int = -1, table: str = "log_lines"
) -> ReadTable:
    return ReadTable(1, table, columns, list(conditions), limit, 1.0)


def rows(found: TableRead, columns: int = len(COLUMNS)) -> list[tuple[object, ...]]:
    return list(zip(*unpacked(found.columns, columns, found.count), strict=True))


@pytest.mark.parametrize(
    ("conditions", "numbers"),
    [
        ([], [1, 2, 3, 4]),
        ([Condition("rank", "=", [1])], [2, 4]),
        ([Condition("rank", "!=", [1])], [1, 3]),
        ([Condition("number", "<", [3])], [1, 2]),
        ([Condition("number", "<=", [3])], [1, 2, 3]),
        ([Condition("number", ">", [3])], [4]),
        ([Condition("number", ">=", [3])], [3, 4]),
        ([Condition("mesh", "in", ["others", "x"])], [3, 4]),
        ([Condition("mesh", "=", ["others"]), Condition("rank", "=", [0])], [3]),
        ([Condition("text", "!=", ["a"])], [2, 4]),  # NULL is not unequal either
        ([Condition("text", "in", ["zzz"])], []),
    ],
)
def test_only_rows_that_meet_all_conditions_are_sent(
    conditions: list[Condition], numbers: list[int]
) -> None:
    found = answer(LOG_LINES, request(*conditions), LINES, "site")
    assert [row[0] for row in rows(found)] == numbers
    assert (found.request, found.site, found.count) == (1, "site", len(numbers))


def test_only_the_columns_that_were_asked_for_are_sent_in_their_order() -> None:
    found = answer(LOG_LINES, request(columns=["text", "number"]), LINES[:2])
    assert rows(found, 2) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 1), (9, 2), (-1, 2)])
def test_a_limit_counts_the_rows_that_meet_the_conditions(limit: int, count: int) -> None:
    found = answer(LOG_LINES, request(Condition("rank", "=", [1]), limit=limit), LINES)
    assert found.count == count
    assert [row[0] for row in rows(found)] == [2, 4][:count]


def test_rows_that_do_not_fit_are_left_out_and_counted() -> None:
    many: list[Row] = [(n, 1, 7, "workers", 0, "stdout", f"line {n}" * 20) for n in range(64)]
    found = answer(LOG_LINES, request(), many, most_bytes=4000)
    assert 0 < found.count < 64
    assert found.count + found.dropped == 64
    assert len(found.columns) <= 4000
    assert [row[0] for row in rows(found)] == list(range(found.count))


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (request(table="procs", columns=["nope"]), "table procs has no column 'nope' here"),
        (request(table="procs", columns=["host"]), "table procs has no column 'host' here"),
        (request(table="procs", columns=[]), "the request names no columns"),
        (
            request(Condition("nope", "=", [1]), table="procs", columns=["rank"]),
            "table procs has no column 'nope' here",
        ),
        (
            request(Condition("rank", "~", [1]), table="procs", columns=["rank"]),
            "there is no operator '~'",
        ),
        (
            request(Condition("rank", "=", [1, 2]), table="procs", columns=["rank"]),
            "= compares with 2 values",
        ),
        (
            request(Condition("rank", "in", []), table="procs", columns=["rank"]),
            "in compares with 0 values",
        ),
        (
            request(Condition("rank", "=", ["1"]), table="procs", columns=["rank"]),
            "rank is BIGINT, compared with another type",
        ),
        (
            request(Condition("mesh", "<", [1]), table="procs", columns=["rank"]),
            "mesh is VARCHAR, compared with another type",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_the_reason(
    asked: ReadTable, problem: str
) -> None:
    assert problem_of(PROCS, asked) == problem


def test_a_request_for_an_unknown_table_is_refused() -> None:
    assert problem_of(None, request(table="nope")) == "there is no table 'nope'"


def test_a_request_that_makes_sense_is_not_refused() -> None:
    assert problem_of(LOG_LINES, request(Condition("rank", "in", [1, 2]))) == ""


def test_a_process_is_asked_unless_its_place_excludes_it() -> None:
    conditions = [Condition("caller_rank", ">", [1]), Condition("rank", "=", [0])]
    asked = [rank for rank in range(4) if place_meets(CALLS, conditions, 7, "workers", rank)]
    assert asked == [2, 3]
    assert not place_meets(CALLS, [Condition("caller_mesh", "=", ["x"])], 7, "workers", 0)
    assert place_meets(MESHES, [Condition("given_name", "=", ["x"])], 7, "workers", 0)


def test_the_page_of_tables_lists_every_column() -> None:
    page = (Path(__file__).parents[5] / "docs" / "reference" / "tables.md").read_text()
    for table in TABLES.values():
        section = page.partition(f"\n## {table.name}\n")[2].partition("\n## ")[0]
        listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE)
        assert listed == [(column.name, column.type) for column in table.sent], table.name


def test_conditions_on_times_tell_whether_older_rows_are_wanted() -> None:
    def wanted(*conditions: Condition) -> bool:
        return wants_before(ReadTable(1, "messages", ["id"], list(conditions), -1, 1.0), 100)

    assert wanted()
    assert wanted(Condition("timestamp_us", ">", [99]))
    assert not wanted(Condition("timestamp_us", ">", [100]))
    assert not wanted(Condition("endpoint", "=", ["x"]), Condition("timestamp_us", ">=", [100]))
    assert wanted(Condition("timestamp_us", "<", [100]))
    assert wanted(Condition("timestamp_us", "in", [99, 100]))
    assert not wanted(Condition("timestamp_us", "=", [100]))


def test_every_table_names_existing_columns_as_its_place_and_no_column_twice() -> None:
    for table in TABLES.values():
        names = [column.name for column in table.columns]
        assert len(set(names)) == len(names), table.name
        place = table.place
        assert place is None or {place.mesh_id, place.mesh, place.rank} <= set(names), table.name


def test_the_page_of_tables_lists_every_column_of_a_view() -> None:
    page = (Path(__file__).parents[5] / "docs" / "reference" / "tables.md").read_text()
    for view in VIEWS.values():
        section = page.partition(f"\n## {view.name}\n")[2].partition("\n## ")[0]
        listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE)
        assert listed == [(column.name, column.type) for column in view.columns], view.name


def test_the_names_and_columns_of_monarch_are_there() -> None:
    tables = {name: {c.name for c in table.columns} for name, table in TABLES.items()}
    tables |= {name: {c.name for c in view.columns} for name, view in VIEWS.items()}
    assert len(MONARCHS) == 29
    for name, columns in MONARCHS.items():
        assert set(columns.split()) <= tables[name], name


MONARCHS = {
    "actors": "id timestamp_us mesh_id rank full_name display_name",
    "actor_status_events": "id timestamp_us actor_id new_status reason",
    "actor_failures": "snapshot_id node_id failure_error_message failure_root_cause_actor "
    "failure_root_cause_name failure_occurred_at failure_is_propagated",
    "actor_executions": "snapshot_id node_id active_count complete truncated",
    "actor_inbound_orderings": "snapshot_id node_id enabled snapshot_complete "
    "skipped_session_count known_session_count returned_buffered_session_count "
    "returned_buffered_message_count returned_max_buffered_count",
    "actor_nodes": "snapshot_id node_id actor_status actor_type instance_id messages_processed "
    "created_at last_message_handler total_processing_time_us queue_depth is_system",
    "active_handlers": "snapshot_id node_id name active_count oldest_since",
    "children": "snapshot_id parent_id child_id child_sort_key is_system is_stopped",
    "events": "name target level fields_json timestamp_us parent_span thread_id thread_name "
    "module_path file line",
    "host_nodes": "snapshot_id node_id addr host_num_procs",
    "meshes": "id timestamp_us class given_name full_name shape_json parent_mesh_id "
    "parent_view_json",
    "message_status_events": "id timestamp_us message_id status",
    "messages": "id timestamp_us from_actor_id to_actor_id endpoint port_index",
    "metric_gauges": "name timestamp_us start_timestamp_us scope_name unit attributes_json "
    "resource_attributes_json value_f64 value_i64 value_u64",
    "metric_histograms": "name timestamp_us start_timestamp_us scope_name unit temporality "
    "attributes_json resource_attributes_json count sum_f64 sum_i64 sum_u64 min_f64 min_i64 "
    "min_u64 max_f64 max_i64 max_u64 bounds_json bucket_counts_json",
    "metric_sums": "name timestamp_us start_timestamp_us scope_name unit temporality is_monotonic "
    "attributes_json resource_attributes_json sum_f64 sum_i64 sum_u64",
    "nodes": "snapshot_id node_id node_kind as_of",
    "ordering_sessions": "snapshot_id node_id session_id sender last_released_seq "
    "expected_next_seq buffered_count oldest_buffered_seq newest_buffered_seq",
    "proc_nodes": "snapshot_id node_id proc_name num_actors stopped_retention_cap is_poisoned "
    "failed_actor_count",
    "pyspy_dumps": "dump_id timestamp_us pid binary proc_ref capture_mode warnings_json",
    "pyspy_frames": "dump_id thread_id frame_depth name filename module short_filename line "
    "is_entry",
    "pyspy_local_variables": "dump_id thread_id frame_depth name addr arg repr",
    "pyspy_stack_traces": "dump_id pid thread_id thread_name os_thread_id active owns_gil",
    "resolution_errors": "snapshot_id node_id error_code error_message",
    "root_nodes": "snapshot_id node_id num_hosts started_at started_by",
    "sent_messages": "id timestamp_us sender_actor_id actor_mesh_id view_json shape_json",
    "snapshots": "snapshot_id snapshot_ts",
    "span_events": "process_id id timestamp_us event_type",
    "spans": "process_id id name target level fields_json timestamp_us parent_id thread_name file "
    "line",
}
