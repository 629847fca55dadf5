"""The HTTP application: routes, access, errors in the form of the API.

Runs in: the admin server; the event loop parses requests, worker threads ask agents.
Invariants: a request without access to any path gets 401 and nothing else; an error has the
form `{"error": {"code", "message"}}`; every answer is bounded in time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from monarch._src.admin import handlers
from monarch._src.admin.dashboard.login import DashboardLogin, is_dashboard
from monarch._src.admin.dashboard.routes import dashboard_routes
from monarch._src.admin.responses import (
    ROLE,
    AdminService,
    acted,
    error_response,
    json_response,
    read_body,
    role_of,
)
from monarch._src.admin.skill import skill_text
from monarch._src.admin.state import openapi
from monarch._src.admin.state.access import AdminRole
from monarch._src.admin.state.nodes import tree_text
from monarch._src.admin.state.openmetrics import CONTENT_TYPE
from monarch._src.version import VERSION

Handler: TypeAlias = "Callable[[Request], Awaitable[Response]]"
SCHEMA_TYPE = "application/schema+json"


def make_app(service: AdminService) -> ASGIApp:
    """The whole application."""
    found = _handlers(service)
    routes = [
        Route(
            operation.path.replace("{reference}", "{reference:path}"),
            found[operation.name],
            methods=[operation.method.upper()],
            name=operation.name,
        )
        for operation in openapi.OPERATIONS
    ]
    app = Starlette(
        routes=[*dashboard_routes(service), *routes],
        exception_handlers={HTTPException: _on_http_error, Exception: _on_error},
    )
    return _Gate(app, service)


class _Gate:
    """Lets requests in by their role, before anything else is looked at."""

    def __init__(self, app: ASGIApp, service: AdminService) -> None:
        self._app = app
        self._service = service
        self._login = DashboardLogin(service.tokens, service.url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        header = given[0].decode("latin-1") if len(given) == 1 else ("" if given else None)
        role = self._service.tokens.role_of(header, self._service.without_token)
        if header is None and is_dashboard(scope["path"]):
            login = self._login.attempt(scope)
            if login.response is not None:
                await login.response(scope, receive, send)
                return
            role = max(role, login.role)
        if role is AdminRole.STRANGER:
            await error_response(401, "a token is needed", {"WWW-Authenticate": "Bearer"})(
                scope, receive, send
            )
            return
        scope[ROLE] = role
        await self._app(scope, receive, send)


def _handlers(service: AdminService) -> dict[str, Handler]:
    """The handler of each operation, by its name."""
    reader = service.reader

    async def root(request: Request) -> Response:
        query = dict(request.query_params)
        return await json_response(lambda: handlers.node(reader, "root", query))

    async def node(request: Request) -> Response:
        reference = request.path_params["reference"]
        query = dict(request.query_params)
        return await json_response(lambda: handlers.node(reader, reference, query))

    async def nodes(request: Request) -> Response:
        query = dict(request.query_params)
        return await json_response(lambda: handlers.nodes(reader, query))

    async def tree(_request: Request) -> Response:
        text = await run_in_threadpool(lambda: tree_text(reader.cluster()))
        return Response(text.encode("utf-8", "backslashreplace"), media_type="text/plain")

    async def admin(request: Request) -> Response:
        return await json_response(
            lambda: openapi.AdminInfo(
                service.host, service.url, service.pid, VERSION,
                role_of(request).name.lower(), [one.name for one in reader.sessions()],
            )
        )  # fmt: skip

    async def explain(request: Request) -> Response:
        query = dict(request.query_params)
        return await json_response(lambda: handlers.explained(reader, query))

    async def pyspy(request: Request) -> Response:
        proc, query = request.path_params["proc"], dict(request.query_params)
        return await json_response(lambda: handlers.stacks(reader, proc, query))

    async def pyspy_dump(request: Request) -> Response:
        proc = request.path_params["proc"]
        return await json_response(lambda: handlers.dump(reader, service.dumps, proc))

    async def flame_graph(request: Request) -> Response:
        proc, wanted = request.path_params["proc"], await read_body(request, openapi.FlameRequest)
        try:
            picture = await run_in_threadpool(handlers.flame_graph, reader, proc, wanted)
        except handlers.Refusal as refusal:
            return error_response(refusal.status, str(refusal))
        return Response(picture, media_type=openapi.SVG)

    async def config(request: Request) -> Response:
        return await json_response(lambda: handlers.config(reader, request.path_params["proc"]))

    async def query(request: Request) -> Response:
        asked = await read_body(request, openapi.QueryRequest)
        return await json_response(lambda: handlers.query(reader, asked, service.dumps))

    async def metrics(_request: Request) -> Response:
        text = await run_in_threadpool(handlers.metrics, reader)
        return Response(
            text.encode("utf-8", "backslashreplace"), headers={"Content-Type": CONTENT_TYPE}
        )

    async def skill(_request: Request) -> Response:
        return Response(skill_text(), media_type="text/markdown")

    async def stop(request: Request) -> Response:
        host = request.path_params["host"]
        return await acted(service, request, "stop", host, lambda: handlers.stop(reader, host))

    async def kill(request: Request) -> Response:
        proc = request.path_params["proc"]
        return await acted(service, request, "kill", proc, lambda: handlers.kill(reader, proc))

    return {
        "root": root, "node": node, "nodes": nodes, "tree": tree, "admin": admin,
        "schema": _constant(openapi.schema_of(openapi.NodeAnswer), SCHEMA_TYPE),
        "schema_admin": _constant(openapi.schema_of(openapi.AdminInfo), SCHEMA_TYPE),
        "schema_error": _constant(openapi.schema_of(openapi.ErrorAnswer), SCHEMA_TYPE),
        "openapi": _constant(openapi.document(VERSION), "application/json"),
        "explain": explain, "pyspy": pyspy, "pyspy_dump": pyspy_dump,
        "flame_graph": flame_graph, "config": config,
        "query": query, "metrics": metrics, "skill": skill, "stop": stop, "kill": kill,
    }  # fmt: skip


def _constant(data: object, media_type: str) -> Handler:
    body = msgspec.json.encode(data)

    async def answer(_request: Request) -> Response:
        return Response(body, media_type=media_type)

    return answer


async def _on_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return error_response(error.status_code, error.detail, headers)


async def _on_error(_request: Request, error: Exception) -> Response:
    return error_response(500, f"{type(error).__name__}; the server's log has the traceback")
