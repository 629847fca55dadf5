from __future__ import annotations

import pytest

from monarch._src.admin.state.access import AdminRole, Tokens

TOKENS = Tokens("read-me", "own-me")


@pytest.mark.parametrize(
    ("header", "role"),
    [
        ("Bearer read-me", AdminRole.OBSERVER),
        ("bearer  own-me", AdminRole.OWNER),
        ("Bearer own-m", AdminRole.STRANGER),
        ("Bearer own-mee", AdminRole.STRANGER),
        ("Bearer ", AdminRole.STRANGER),
        ("Basic own-me", AdminRole.STRANGER),
        ("own-me", AdminRole.STRANGER),
        ("", AdminRole.STRANGER),
        ("Bearer \xff\udcff", AdminRole.STRANGER),
        ("Bearer " + "x" * 100_000, AdminRole.STRANGER),
    ],
)
def test_only_the_whole_token_proves_a_role(header: str, role: AdminRole) -> None:
    assert TOKENS.role_of(header, AdminRole.OBSERVER) is role


def test_without_a_header_the_role_is_that_of_the_socket() -> None:
    assert TOKENS.role_of(None, AdminRole.OBSERVER) is AdminRole.OBSERVER
    assert TOKENS.role_of(None, AdminRole.STRANGER) is AdminRole.STRANGER


def test_tokens_have_no_text() -> None:
    assert "own-me" not in repr(TOKENS)
