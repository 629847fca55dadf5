"""The arguments of ElasticTraining, and its state before a group is formed."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.spmd import ElasticTraining


class Part:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize(
    ("state", "options", "kind", "text"),
    [
        (
            {"losses": []},
            {},
            TypeError,
            r"state\['losses'\] is a list, which has no state_dict",
        ),
        ({}, {"at_most": True}, TypeError, "at_most=True: give a whole number"),
        ({}, {"at_most": 0}, ValueError, "at_most=0: give 1 or more"),
        ({}, {"step_within": 0}, ValueError, "step_within=0: give a time above 0"),
        ({}, {"backend": "gloo,"}, ValueError, "backend is text such as 'gloo'"),
        ({}, {"timeout": -1}, ValueError, "timeout is a finite time above 0"),
        ({}, {"restart": "always"}, ValueError, "restart='always': give 'on-failure'"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_at_once(
    state: Any, options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        ElasticTraining(state, **options)


def test_there_is_no_world_before_the_run() -> None:
    training = ElasticTraining({"part": Part()})
    training.step = 3
    assert repr(training) == "<ElasticTraining of part, at step 3>"
    with pytest.raises(RuntimeError, match="there is no group before"):
        _ = training.world
