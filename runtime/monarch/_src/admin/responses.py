"""Responses of the admin server: JSON, errors in the form of the API, bodies of requests.

Runs in: the admin server. `json_response` runs its function on a worker thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from monarch._src.admin.audit import ActionLog
from monarch._src.admin.cluster_reader import ClusterReader
from monarch._src.admin.handlers import Refusal
from monarch._src.admin.state import openapi
from monarch._src.admin.state.access import AdminRole, Tokens
from monarch._src.admin.state.stack_dumps import StackDumps

Body = TypeVar("Body", bound=msgspec.Struct)
ROLE = "monarch.role"
"""The key of a request's scope under which the gate leaves its role."""


@dataclass(frozen=True)
class AdminService:
    """The objects that the routes use.

    `without_token`: the role of a request without a token. `dumps`: the stacks that are stored.
    """

    reader: ClusterReader
    tokens: Tokens
    without_token: AdminRole
    actions: ActionLog
    host: str
    url: str
    pid: int
    dumps: StackDumps = field(default_factory=StackDumps)


def role_of(request: Request) -> AdminRole:
    """The role of a request that the gate has let in."""
    return request.scope[ROLE]


def peer_of(request: Request) -> str:
    """The address of the client, for the log of actions."""
    return f"{request.client.host}:{request.client.port}" if request.client else "unix socket"


def encoded(found: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An object as JSON."""
    data = msgspec.json.encode(found, enc_hook=str)
    return Response(data, status, headers, media_type="application/json")


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error in the form of the API."""
    return encoded(openapi.error_answer(status, message), status, headers)


async def json_response(make: Callable[[], object]) -> Response:
    """The answer of `make`, which runs on a worker thread, or the error that it raises."""
    try:
        found = await run_in_threadpool(make)
    except Refusal as refusal:
        return error_response(refusal.status, str(refusal))
    return encoded(found)


async def body_of(request: Request) -> bytes:
    """The body of a request, which is bounded.

    Raises:
        HTTPException: it is too long.
    """
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > openapi.LONGEST_SQL:
            raise HTTPException(413, f"the body has more than {openapi.LONGEST_SQL} bytes")
    return bytes(data)


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The body of a request, which is JSON.

    Raises:
        HTTPException: it is of another form, or too long.
    """
    try:
        return msgspec.json.decode(await body_of(request), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"the body is no {kind.__name__}: {error}") from None


async def acted(
    service: AdminService, request: Request, what: str, target: str, act: Callable[[], object]
) -> Response:
    """The answer of an action of an owner, which is logged before and after."""
    facts = {"action": what, "target": target[:200], "peer": peer_of(request)}
    if role_of(request) < AdminRole.OWNER:
        service.actions.write("refused", **facts)
        return error_response(403, f"{what} needs the owner's token")
    service.actions.write("begun", **facts)
    response = await json_response(act)
    service.actions.write("ended", **facts, status=response.status_code)
    return response
