"""How a browser proves its role."""

from __future__ import annotations

from typing import Any

import pytest

from monarch._src.admin.dashboard.login import DashboardLogin, is_dashboard
from monarch._src.admin.state.access import AdminRole, Tokens

URL = "http://127.0.0.1:8265"


@pytest.fixture
def login() -> DashboardLogin:
    return DashboardLogin(Tokens("read-me", "own-me"), URL)


def scope(query: str = "", cookie: str | None = None) -> dict[str, Any]:
    headers = [] if cookie is None else [(b"cookie", cookie.encode("latin-1"))]
    return {"query_string": query.encode(), "headers": headers}


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/dashboard", True), ("/dashboard/x.js", True), ("/dashboards", False), ("/v1/root", False)],
)
def test_only_paths_of_the_dashboard_take_cookies(path: str, expected: bool) -> None:
    assert is_dashboard(path) is expected


@pytest.mark.parametrize(
    ("token", "role"), [("read-me", AdminRole.OBSERVER), ("own-me", AdminRole.OWNER)]
)
def test_a_token_is_changed_for_a_cookie(
    login: DashboardLogin, token: str, role: AdminRole
) -> None:
    found = login.attempt(scope(f"token={token}"))
    assert (found.role, found.response is not None) == (role, True)
    assert found.response is not None
    assert (found.response.status_code, found.response.headers["location"]) == (303, "./")
    said = found.response.headers["set-cookie"]
    assert "HttpOnly" in said
    assert "SameSite=lax" in said
    assert "Path" not in said
    cookie = said.partition(";")[0]
    again = login.attempt(scope(cookie=f"other=1; {cookie}"))
    assert (again.role, again.response) == (role, None)


@pytest.mark.parametrize(
    "cookie", [None, "", "other=1", "monarch-dashboard-8265=wrong", "a[]=\xff"]
)
def test_without_the_cookie_it_is_a_stranger(login: DashboardLogin, cookie: str | None) -> None:
    found = login.attempt(scope(cookie=cookie))
    assert (found.role, found.response) == (AdminRole.STRANGER, None)


def test_a_wrong_token_is_refused_at_once(login: DashboardLogin) -> None:
    found = login.attempt(scope("token=wrong", "monarch-dashboard-8265=read-me"))
    assert found.role is AdminRole.STRANGER
    assert found.response is not None
    assert found.response.status_code == 401


def test_servers_at_other_ports_have_other_cookies() -> None:
    tokens = Tokens("read-me", "own-me")
    names = {DashboardLogin(tokens, f"http://127.0.0.1:{port}").cookie for port in (1, 2)}
    assert len(names) == 2
