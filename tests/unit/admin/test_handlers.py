from __future__ import annotations

import pytest

from monarch._src.admin import handlers
from monarch._src.admin.cluster_reader import ClusterReader
from monarch._src.admin.handlers import Refusal
from monarch._src.admin.state.openapi import QueryRequest
from monarch._src.admin.state.stack_dumps import StackDumps

NOBODY = ClusterReader(list)


def test_without_sessions_there_is_a_root_alone() -> None:
    root = handlers.node(NOBODY, "root", {})
    assert (root.children, root.parent, root.next_cursor) == ([], None, None)
    assert [one.identity for one in handlers.nodes(NOBODY, {}).nodes] == ["root"]


def test_a_query_that_computes_for_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "QUERY_S", 1.0)
    endless = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range = -1"
    with pytest.raises(Refusal, match=r"did not end within 1 s") as refused:
        handlers.query(NOBODY, QueryRequest(endless), StackDumps())
    assert refused.value.status == 504
    monkeypatch.undo()
    answer = handlers.query(NOBODY, QueryRequest("SELECT 1 AS one"), StackDumps())
    assert answer.rows == [{"one": 1}], "the next query is not interrupted"


def test_an_answer_of_too_many_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "MOST_ROWS", 10)
    found = handlers.query(NOBODY, QueryRequest("SELECT * FROM range(10)"), StackDumps())
    assert len(found.rows) == 10
    with pytest.raises(Refusal, match="more than 10 rows") as refused:
        handlers.query(NOBODY, QueryRequest("SELECT * FROM range(11)"), StackDumps())
    assert refused.value.status == 400


def test_snapshots_are_shared_while_they_are_fresh_and_some_are_kept() -> None:
    reader = ClusterReader(list)
    first = reader.cluster(3600.0)
    assert reader.cluster(3600.0) is first
    numbers = [reader.cluster(0.0).number for _ in range(8)]
    assert numbers == list(range(2, 10))
    assert reader.kept(1) is None
    assert reader.kept(2) is not None


def test_a_name_that_is_given_wrongly_is_told_with_the_names_there_are() -> None:
    with pytest.raises(Refusal, match=r"no parameter 'page'; there are \['cursor', 'limit'\]"):
        handlers.node(NOBODY, "root", {"page": "2"})
