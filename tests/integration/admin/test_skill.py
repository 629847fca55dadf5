"""The guide for AI agents: each command, query and path in it is one that works."""

from __future__ import annotations

import re
import shlex

import pytest

from monarch._src.admin.skill import skill_text
from monarch._src.admin.state import openapi
from monarch._src.cli.program import parser_and_names
from monarch.actor import ProcMesh
from monarch.observe import query
from tests.integration.commands import monarch
from tests.workers import PATIENCE_S

pytestmark = pytest.mark.slow
TEXT = skill_text()
SQL = re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()
] + re.findall(r"`(monarch [^`]+)`", TEXT)


def test_the_command_prints_the_guide() -> None:
    status, out, err = monarch("skill")
    assert (status, out, err) == (0, TEXT, "")
    assert TEXT.startswith("---\nname: monarch\ndescription: ")
    assert len(TEXT.splitlines()) < 500


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one(command: str) -> None:
    program, *arguments = shlex.split(command.replace(", then", ""))
    assert program == "monarch"
    parser_and_names()[0].parse_args(arguments)


@pytest.mark.parametrize("sql", SQL)
def test_every_query_runs(four: ProcMesh, sql: str) -> None:
    four.initialized.get()
    assert query(sql, PATIENCE_S).missing == ()


def test_queries_of_commands_run(four: ProcMesh) -> None:
    found = [shlex.split(one)[-1] for one in COMMANDS if one.startswith("monarch query")]
    for sql in found:
        if sql.startswith(("SELECT", "SHOW", "DESCRIBE")):
            query(sql, PATIENCE_S)


def test_every_path_is_one_of_the_api() -> None:
    named = set(re.findall(r"`(/[\w/{}.]+)(?:\?[\w=]+)?`", TEXT))
    assert len(named) >= 6
    assert named - {operation.path for operation in openapi.OPERATIONS} == set()
