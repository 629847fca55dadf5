"""The admin API against its own OpenAPI document, by schemathesis, over a real socket."""

from __future__ import annotations

from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks

from monarch._src.admin.state import openapi
from tests.integration.admin_server import AdminProcess, session_name

pytestmark = pytest.mark.slow
# A text of the right form may still be no cursor and no SQL, so a valid request may be refused. The
# document allows requests without a token, for Unix sockets, and at this port there is none.
NOT_PROMISED = [checks.ignored_auth, checks.positive_data_acceptance]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("operation", openapi.OPERATIONS, ids=lambda operation: operation.name)
def test_every_answer_is_as_the_document_says(
    tcp_admin: AdminProcess, operation: openapi.Operation
) -> None:
    schema = schemathesis.openapi.from_dict(openapi.document("1"))
    schema.config.update(base_url=tcp_admin.url)
    found: Any = schema[operation.path][operation.method.upper()]
    headers = {"Authorization": f"Bearer {tcp_admin.tokens['observer']}"}

    checks = cast("list[HealthCheck]", list(HealthCheck))

    @settings(
        max_examples=15, deadline=None, database=None, derandomize=True,
        suppress_health_check=checks, phases=(Phase.generate,),
    )  # fmt: skip
    @given(case=found.as_strategy())
    def exercise(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=headers, excluded_checks=NOT_PROMISED, timeout=60)

    exercise()
    host = tcp_admin.get(f"/v1/host:{session_name()}", "observer")
    assert host.status == 200, "an observer has ended nothing"
