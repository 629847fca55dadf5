"""Uids and the ids of procs: values that are written, read, compared and sent."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.actor.identity import ProcId, Uid

numbers = st.integers(0, (1 << 64) - 1)
labels = st.text(alphabet="abcXYZ019_-.", min_size=1, max_size=12)
uids = st.builds(Uid, st.none() | labels, numbers) | st.builds(Uid, labels)


@given(uids)
def test_what_is_written_is_read_back(uid: Uid) -> None:
    for again in (Uid.from_string(str(uid)), pickle.loads(pickle.dumps(uid))):
        assert again == uid
        assert again.label == uid.label
        assert hash(again) == hash(uid)
    assert ProcId.from_string(str(ProcId(uid))) == ProcId(uid)
    assert len({ProcId(uid), ProcId.from_string(str(uid))}) == 1


@given(uids, uids)
def test_uids_are_equal_if_they_have_one_number_or_are_one_name(one: Uid, other: Uid) -> None:
    same = (
        one.label == other.label
        if one.is_singleton and other.is_singleton
        else one.instance_value == other.instance_value
    )
    assert (one == other) is same


@given(numbers, labels)
def test_a_label_is_for_people_only(number: int, label: str) -> None:
    uid = Uid.instance_from_value(number, label)
    assert uid == Uid.instance_from_value(number)
    assert (uid.label, uid.instance_value) == (label, number)
    assert uid.is_instance
    assert not uid.is_singleton
    assert ProcId(uid).label == label


def test_new_ones_differ() -> None:
    assert (
        len({Uid.anonymous() for _ in range(100)} | {Uid.instance("a") for _ in range(100)}) == 200
    )
    assert Uid.anonymous().label is None
    assert str(Uid.instance("workers")).startswith("workers<")


@given(st.text(max_size=8))
def test_only_one_text_stands_for_a_uid(text: str) -> None:
    try:
        uid = Uid.from_string(text)
    except ValueError:
        return
    assert Uid.from_string(str(uid)) == uid
    assert str(uid) == text or "<0" in text  # leading zeros


@pytest.mark.parametrize("text", ["", "a b", "<>", "a<", "<xyz>", "a<1>b", "a<11112222333344445>"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no uid"):
        Uid.from_string(text)


def test_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        Uid.instance_from_value(1 << 64)
    with pytest.raises(ValueError, match="64 bits"):
        Uid.instance_from_value(-1)
    with pytest.raises(ValueError, match="no label"):
        Uid.instance("a<b")
    with pytest.raises(ValueError, match="a number, or a name"):
        Uid()
