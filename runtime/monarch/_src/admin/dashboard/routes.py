"""The routes of the dashboard: its page, its state, and the requests of its views.

They are for the page alone and may change with it; programs use `/v1`. All URLs in the page are
relative, so it works behind a proxy with a prefix and over a forwarded port.

Runs in: the admin server, on its event loop; answers are made on worker threads.
"""

from __future__ import annotations

from math import isfinite

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from monarch._src.admin import handlers
from monarch._src.admin.dashboard.page_files import PAGE, page_file
from monarch._src.admin.dashboard.requests import (
    DashboardRequests,
    DebugRequest,
    Kill,
    OpenConsole,
    Question,
    Resume,
    SendCommand,
    parse,
)
from monarch._src.admin.handlers import Refusal
from monarch._src.admin.responses import (
    AdminService,
    acted,
    body_of,
    error_response,
    json_response,
    read_body,
    role_of,
)
from monarch._src.admin.state.access import AdminRole
from monarch._src.admin.state.openapi import ActionAnswer, QueryRequest

JSON = "application/json"
SAFE = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def dashboard_routes(service: AdminService) -> list[Route]:
    """The routes of the dashboard of a server."""
    views = DashboardRequests(service.reader)

    async def folder(_request: Request) -> Response:
        return RedirectResponse("dashboard/", 307)

    async def page(_request: Request) -> Response:
        return _file(PAGE)

    async def file(request: Request) -> Response:
        return _file(request.path_params["name"])

    async def state(request: Request) -> Response:
        at_s, is_owner = _at(request), role_of(request) is AdminRole.OWNER
        return await json_response(lambda: views.state(at_s, is_owner=is_owner))

    async def ask(request: Request) -> Response:
        _check_json(request)
        at_s, body = _at(request), await body_of(request)
        try:
            asked = parse(body)
            if isinstance(asked, Kill):
                return await _kill(request, asked)
            if not isinstance(asked, Question):
                return await _debug(request, asked)
        except Refusal as refusal:
            return error_response(refusal.status, str(refusal))
        return await json_response(lambda: views.answer(asked, at_s))

    async def _kill(request: Request, asked: Kill) -> Response:
        def act() -> ActionAnswer:
            reader = service.reader
            found = [handlers.kill(reader, one).done for one in views.targets(asked)]
            return ActionAnswer([line for done in found for line in done])

        ranks = "all ranks" if asked.ranks is None else f"ranks {asked.ranks}"
        return await acted(service, request, "kill", f"{ranks} of {asked.mesh}", act)

    async def _debug(request: Request, asked: DebugRequest) -> Response:
        def act() -> object:
            return views.debug(asked)

        match asked:
            case SendCommand(console, text):
                target = f"console {console}: {text}"
                return await acted(service, request, "debug command", target, act)
            case OpenConsole(mesh, ranks):
                return await acted(service, request, "pause", f"ranks {ranks} of {mesh}", act)
            case Resume(mesh, ranks):
                return await acted(service, request, "resume", f"ranks {ranks} of {mesh}", act)
            case _:  # these change nothing
                if role_of(request) < AdminRole.OWNER:
                    return error_response(403, "the debugger needs the owner's token")
                return await json_response(act)

    async def query(request: Request) -> Response:
        _check_json(request)
        at_s, asked = _at(request), await read_body(request, QueryRequest)
        return await json_response(
            lambda: handlers.query(views.reader_at(at_s), asked, service.dumps)
        )

    async def explain(request: Request) -> Response:
        at_s = _at(request)
        stacks = "0" if service.reader.span is not None else "1"

        def read() -> dict[str, str]:
            return {"text": str(handlers.explained(views.reader_at(at_s), {"stacks": stacks}))}

        return await json_response(read)

    return [
        Route("/dashboard", folder),
        Route("/dashboard/", page),
        Route("/dashboard/state", state),
        Route("/dashboard/ask", ask, methods=["POST"]),
        Route("/dashboard/query", query, methods=["POST"]),
        Route("/dashboard/explain", explain),
        Route("/dashboard/{name}", file),
    ]


def _file(name: str) -> Response:
    found = page_file(name)
    if found is None:
        raise HTTPException(404, f"there is no file {name[:80]!r}")
    data, kind = found
    return Response(data, media_type=kind, headers=SAFE)


def _at(request: Request) -> float | None:
    """The time in a recording that a request asks for, in seconds after the first sample."""
    text = request.query_params.get("at")
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not (isfinite(found) and found >= 0):
        raise HTTPException(400, f"at={text[:40]}: give seconds after the first sample")
    return found


def _check_json(request: Request) -> None:
    """A browser sends this type to another site only after asking it."""
    if request.headers.get("content-type", "").partition(";")[0] != JSON:
        raise HTTPException(415, f"the body must be {JSON}")
