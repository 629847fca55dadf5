from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.admin.state.references import (
    ROOT,
    BadReferenceError,
    Reference,
    parse,
    parse_proc,
)

SESSIONS = st.from_regex(r"[A-Za-z0-9_.\-]{1,100}", fullmatch=True)
UIDS = st.integers(0, 2**64 - 1)
RANKS = st.integers(0, 10**9 - 1)
REFERENCES = st.one_of(
    st.just(ROOT),
    st.builds(lambda s: Reference("host", s), SESSIONS),
    st.builds(lambda s, m, r: Reference("proc", s, m, r), SESSIONS, UIDS, RANKS),
    st.builds(lambda s, m, r, a: Reference("actor", s, m, r, a), SESSIONS, UIDS, RANKS, UIDS),
)


@given(REFERENCES)
def test_a_reference_is_the_same_after_it_was_text(reference: Reference) -> None:
    assert parse(str(reference)) == reference


@given(REFERENCES)
def test_parents_lead_to_the_root(reference: Reference) -> None:
    kinds = [reference.kind]
    while (parent := reference.parent) is not None:
        reference = parent
        kinds.append(reference.kind)
    assert reference == ROOT
    assert kinds == ["actor", "proc", "host", "root"][-len(kinds) :]


@pytest.mark.parametrize(
    "text",
    [
        "", "roo", "root ", "root\n", "host:", "host:a/b", "host:a:b", "proc:a:b", "proc:a:1:-1",
        "proc:a:zz:1", "proc:a:1:1:1", "actor:a:1:1", "../root", "%72oot", "proc:a:1:1" + "0" * 300,
        "proc:a:1:٣", "\x00",
    ],
)  # fmt: skip
def test_other_text_is_refused_with_the_forms_that_there_are(text: str) -> None:
    with pytest.raises(BadReferenceError, match="a reference is root, host:SESSION"):
        parse(text)


@given(st.text(max_size=300))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except BadReferenceError:
        return
    assert parse(str(found)) == found


def test_a_stranger_s_text_comes_back_shortened() -> None:
    with pytest.raises(BadReferenceError) as refused:
        parse("x" * 100_000)
    assert len(str(refused.value)) < 300


def test_an_operation_on_procs_refuses_other_nodes() -> None:
    with pytest.raises(BadReferenceError, match="host:abc' is a host; give a proc"):
        parse_proc("host:abc")
