from __future__ import annotations

import json

import jsonschema
import msgspec
from openapi_spec_validator import OpenAPIV31SpecValidator

from monarch._src.admin.state import openapi
from monarch._src.admin.state.nodes import NodePayload, Properties, RootProperties

DOCUMENT = openapi.document("1.2.3")


def test_the_document_is_valid_openapi_3_1() -> None:
    plain = json.loads(json.dumps(DOCUMENT))
    assert plain["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(plain).validate()


def test_every_reference_in_the_document_leads_somewhere() -> None:
    text = json.dumps(DOCUMENT)
    names = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert names <= set(DOCUMENT["components"]["schemas"])


def test_every_operation_says_which_errors_it_has() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            assert {"200", "401", "500"} <= set(operation["responses"]), (path, method)


def test_actions_may_be_forbidden_and_reading_may_not() -> None:
    forbidden = {
        (method, path)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
        if "403" in operation["responses"]
    }
    assert forbidden == {("post", "/v1/stop/{host}"), ("post", "/v1/kill/{proc}")}


def test_the_path_of_any_reference_comes_last_among_its_kind() -> None:
    gets = [o.path for o in openapi.OPERATIONS if o.method == "get" and o.path.startswith("/v1")]
    assert gets[-1] == "/v1/{reference}"


def test_a_node_meets_its_own_schema() -> None:
    node = openapi.NodeAnswer(
        "root", Properties(Root=RootProperties(1, 2, 3, 0, 0)), ["host:a"], None, 5, 1
    )
    assert isinstance(node, NodePayload)
    schema = openapi.schema_of(openapi.NodeAnswer)
    jsonschema.validate(json.loads(msgspec.json.encode(node)), schema)


def test_errors_have_the_form_of_monarchs() -> None:
    found = msgspec.json.encode(openapi.error_answer(404, "no"))
    assert json.loads(found) == {"error": {"code": "not_found", "message": "no"}}
