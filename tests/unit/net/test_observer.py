"""An observer asks agents and goes: it listens nowhere, waits for nobody beyond its time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch._src.net import observer
from monarch._src.net.node import Node
from monarch._src.net.observer import ask_agents
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT, OBSERVER
from monarch._src.wire.messages import (
    PROTOCOL,
    AnyMessage,
    Hello,
    MeshState,
    MeshStopped,
    Refused,
    Snapshot,
    Snapshotted,
)
from tests.runtime_logs import RuntimeErrors

MakeNode = Callable[..., Node]
MESH = MeshState(7, "ready", 1.5, [], "workers", ["gpus"], [0], "client")


class FakeAgent:
    """A node by the name of an agent, which notes what it is told and answers with one mesh."""

    def __init__(self, make_node: MakeNode) -> None:
        self.told: list[tuple[str, AnyMessage]] = []
        self.before: list[Any] = []
        self.node = make_node(AGENT, self._handle)

    def _handle(self, peer: str, message: AnyMessage, _payload: Payload) -> None:
        self.told.append((peer, message))
        if isinstance(message, Snapshot):
            for first in self.before:
                self.node.send(peer, first)
            self.node.send(peer, Snapshotted(message.request, [MESH]))


@pytest.fixture
def fake_agent(make_node: MakeNode) -> FakeAgent:
    """One that answers."""
    return FakeAgent(make_node)


def test_it_says_who_it_is_and_asks_once_for_all_meshes(
    fake_agent: FakeAgent, sockets: Path
) -> None:
    (answer,) = ask_agents([sockets], 60.0)
    assert answer == Snapshotted(1, [MESH])
    (first, hello), (second, question) = fake_agent.told
    assert first == second
    assert first.startswith(OBSERVER)
    assert isinstance(hello, Hello)
    assert (hello.protocol, hello.kind, hello.pid) == (PROTOCOL, "observer", os.getpid())
    assert hello.address == ""  # nobody can connect to it
    assert question == Snapshot(1, [])
    assert sorted(os.listdir(sockets)) == [AGENT]


def test_whatever_else_it_is_sent_is_no_answer(fake_agent: FakeAgent, sockets: Path) -> None:
    fake_agent.before = [MeshStopped(1)]
    assert ask_agents([sockets], 60.0) == [Snapshotted(1, [MESH])]


def test_an_agent_that_does_not_answer_has_no_answer(sockets: Path) -> None:
    assert ask_agents([sockets], 0.05) == [None]


def test_each_of_several_answers_in_its_place(
    fake_agent: FakeAgent, sockets: Path, own_base_directory: Path
) -> None:
    nowhere = own_base_directory / "nowhere"
    assert ask_agents([nowhere, sockets, nowhere], 0.5) == [None, Snapshotted(1, [MESH]), None]
    assert ask_agents([], 60.0) == []


def test_an_agent_of_another_version_refuses(
    fake_agent: FakeAgent, sockets: Path, monkeypatch: pytest.MonkeyPatch,
    runtime_errors: RuntimeErrors,
) -> None:  # fmt: skip
    monkeypatch.setattr(observer, "VERSIONS", {"monarch": "0.0", "python": "3.9.1"})
    (answer,) = ask_agents([sockets], 60.0)
    assert isinstance(answer, Refused)
    assert "0.0" in answer.why
    assert fake_agent.told == []
    assert "refused observer-" in runtime_errors.take()[0]
