"""How a browser proves its role: by a token in the first URL, then by a cookie.

A browser cannot send the header `Authorization` for a page. So `dashboard/?token=TOKEN` answers
with a cookie that has the token, and redirects to the page without it. Cookies count for paths of
the dashboard only. The browser sends them with no POST of another site (`SameSite=Lax`), and no
script reads them (`HttpOnly`). The cookie has no path, so it holds for the folder of the page also
behind a proxy that puts a prefix before it.

Runs in: the admin server, before a request is let in.
"""

from __future__ import annotations

from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from monarch._src.admin.responses import error_response
from monarch._src.admin.state.access import AdminRole, Tokens

PATH = "/dashboard"


def is_dashboard(path: str) -> bool:
    """Whether a path is one of the dashboard."""
    return path == PATH or path.startswith(f"{PATH}/")


@dataclass(frozen=True)
class Login:
    """The role that a request proves, and the response that it gets at once, if any."""

    role: AdminRole
    response: Response | None = None


class DashboardLogin:
    """Reads the tokens of one server from requests of browsers."""

    def __init__(self, tokens: Tokens, url: str) -> None:
        self._tokens = tokens
        # Cookies do not tell ports apart, and there may be several servers on a host.
        self.cookie = f"monarch-dashboard-{urlsplit(url).port or 'socket'}"

    def attempt(self, scope: Scope) -> Login:
        """The login of a request to the dashboard."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if given is not None:
            return self._with_token(given[0])
        return Login(self._role(self._token_of_cookie(scope)))

    def _with_token(self, token: str) -> Login:
        role = self._role(token)
        if role is AdminRole.STRANGER:
            return Login(role, error_response(401, "this token is not that of the server"))
        response = RedirectResponse("./", 303, {"Cache-Control": "no-store"})
        response.set_cookie(self.cookie, token, httponly=True, samesite="lax", path=None)
        return Login(role, response)

    def _role(self, token: str) -> AdminRole:
        return self._tokens.role_of(f"Bearer {token}", AdminRole.STRANGER)

    def _token_of_cookie(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name != b"cookie":
                continue
            try:
                found = SimpleCookie(value.decode("latin-1")).get(self.cookie)
            except CookieError:
                continue
            if found is not None:
                return found.value
        return ""
