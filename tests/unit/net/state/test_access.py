"""Who may connect, who may say what, and where it is safe to listen."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from monarch._src.net.state.access import AllowList, Role, check_listener, fingerprint, may_say
from monarch._src.net.state.addresses import parse_listening
from monarch._src.wire.messages import AnyMessage, Hello, Snapshot

KEYS = [sign * 40 for sign in "abcd"]


def test_all_and_only_the_keys_of_the_list_have_a_role() -> None:
    allowed = AllowList("job", {Role.WORKER: KEYS[:1], Role.OWNER: KEYS[1:3]})
    roles = [Role.WORKER, Role.OWNER, Role.OWNER, None]
    assert [allowed.role_of(key) for key in KEYS] == roles
    assert allowed.of(Role.OWNER) == KEYS[1:3]
    assert allowed.of(Role.OBSERVER) == []


def test_a_key_that_stands_under_two_roles_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match="is listed twice, as worker and owner") as caught:
        AllowList("job", {Role.WORKER: KEYS[:1], Role.OWNER: KEYS[:1]})
    assert KEYS[0] not in str(caught.value)
    assert fingerprint(KEYS[0]) in str(caught.value)


def test_what_is_no_key_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a public key of 40 characters"):
        AllowList("job", {Role.WORKER: ["short"]})


def test_an_observer_may_say_hello_and_ask_what_is_done_and_nothing_else() -> None:
    kinds = get_args(AnyMessage)
    assert {kind for kind in kinds if may_say(Role.OBSERVER, kind)} == {Hello, Snapshot}
    for role in (Role.OWNER, Role.WORKER):
        assert all(may_say(role, kind) for kind in kinds)


def test_nothing_that_an_observer_may_say_carries_what_would_be_unpickled() -> None:
    payloads = [kind for kind in get_args(AnyMessage) if kind.carries_payload]
    assert payloads
    assert not any(may_say(Role.OBSERVER, kind) for kind in payloads)


@pytest.mark.parametrize(
    ("bind", "resolved"),
    [
        ("tcp://*:26600", []),
        ("tcp://0.0.0.0:26600", []),
        ("tcp://10.77.0.1:26600", []),
        ("tcp://[::]:26600", []),
        ("tcp://h1:26600", ["127.0.1.1", "10.77.0.1"]),
        ("tcp://localhost:26600", ["10.77.0.1"]),
        ("tcp://gate:443@tcp://10.77.0.1:26600", []),
    ],
)
def test_a_listener_beyond_loopback_without_keys_is_refused_with_the_command_that_makes_them(
    bind: str, resolved: list[str]
) -> None:
    listening = parse_listening(bind)
    for trusts_all in (False, True):
        with pytest.raises(PermissionError) as caught:
            check_listener(listening, resolved, has_keys=False, trusts_all=trusts_all)
        said = str(caught.value)
        assert f"refused to listen at {listening.bind} without keys" in said
        assert "`monarch keys make ~/.monarch/keys`" in said
    check_listener(listening, resolved, has_keys=True)


def test_on_loopback_everybody_is_trusted_only_if_that_was_said() -> None:
    for bind, resolved in (("tcp://127.0.0.1:0", []), ("tcp://h1:0", ["127.0.1.1"])):
        listening = parse_listening(bind)
        check_listener(listening, resolved, has_keys=False, trusts_all=True)
        says = "every user of this host could connect"
        with pytest.raises(PermissionError, match=re.escape(says)):
            check_listener(listening, resolved, has_keys=False)
    check_listener(parse_listening("ipc:///tmp/private/w"), has_keys=False)


def test_keys_together_with_trust_in_all_are_a_contradiction() -> None:
    with pytest.raises(ValueError, match="give the keys alone"):
        check_listener(parse_listening("tcp://127.0.0.1:0"), has_keys=True, trusts_all=True)
