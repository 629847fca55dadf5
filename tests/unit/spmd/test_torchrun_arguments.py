"""torchrun's arguments, read by torch's own parser."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from monarch._src.spmd import torchrun_arguments as arguments
from monarch._src.spmd.torchrun_arguments import Launch, TorchrunArgumentError, parse_arguments

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "torchrun.md"


def test_options_and_the_words_of_the_script_are_told_apart() -> None:
    found = parse_arguments(["--nproc-per-node=4", "--nnodes", "2", "train.py", "--nnodes", "7"])
    assert found == Launch(
        4, 2, 2, ("train.py", "--nnodes", "7"), True,
        {"ROLE_NAME": "default", "OMP_NUM_THREADS": "1"}, None, None,
        ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"), 30, 5, 0,
    )  # fmt: skip


def test_a_run_may_take_fewer_nodes_and_begin_again() -> None:
    found = parse_arguments(["--nnodes", "2:4", "--max-restarts=3", "--tee", "3", "train.py"])
    assert (found.least_nodes, found.nodes, found.restarts) == (2, 4, 3)


def test_the_time_for_a_shutdown_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "60")
    found = parse_arguments(["train.py"])
    assert (found.shutdown_s, found.interrupt_s) == (60, 60)
    found = parse_arguments(["--shutdown-timeout", "7", "train.py"])
    assert (found.shutdown_s, found.interrupt_s) == (7, 7)
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon")
    with pytest.raises(TorchrunArgumentError, match="TORCH_ELASTIC_SHUTDOWN_TIMEOUT soon is not"):
        parse_arguments(["train.py"])


@pytest.mark.parametrize(
    ("variable", "value", "option", "says"),
    [
        ("PET_NODE_RANK", "1", "--node_rank=2", "is not supported: the ranks"),
        ("PET_NPROC_PER_NODE", "many", "--nproc-per-node=many", "'many' is neither"),
        ("PET_MAX_RESTARTS", "-1", "--max-restarts=-1", "-1 is not a number"),
        ("PET_MAX_RESTARTS", "x", "--max_restarts=x", ": invalid int value"),
        ("PET_MASTER_PORT", "70000", "--master-port=70000", "70000 is not a port"),
        ("PET_SIGNALS_TO_HANDLE", "SIGNO", "--signals-to-handle=SIGNO", "SIGNO"),
    ],
)
def test_a_refusal_names_the_variable_that_an_option_came_from(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, option: str, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(TorchrunArgumentError) as of_variable:
        parse_arguments(["train.py", option])  # this one is the script's
    assert variable in str(of_variable.value)
    assert says in str(of_variable.value)
    typed = option.partition("=")[0].replace("_", "-")
    assert typed not in str(of_variable.value)
    with pytest.raises(TorchrunArgumentError, match=says) as of_option:
        parse_arguments([option, "train.py"])
    assert typed in str(of_option.value)
    assert "PET_" not in str(of_option.value)


def test_options_about_the_rendezvous_have_no_effect() -> None:
    found = parse_arguments([
        "--standalone", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id",
        "run7", "train.py",
    ])  # fmt: skip
    assert (found.ranks_per_node, found.nodes, found.command) == (1, None, ("train.py",))
    assert found.env == {"ROLE_NAME": "default", "TORCHELASTIC_RUN_ID": "run7"}


def test_threads_are_limited_for_several_ranks_unless_the_user_has_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert "OMP_NUM_THREADS" not in parse_arguments(["train.py"]).env
    assert parse_arguments(["--nproc-per-node", "2", "train.py"]).env["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert "OMP_NUM_THREADS" not in parse_arguments(["--nproc-per-node", "2", "train.py"]).env


def test_modules_and_programs_are_commands_too() -> None:
    module = parse_arguments(["-m", "package.train", "--lr", "1"])
    assert (module.command, module.python) == (("-m", "package.train", "--lr", "1"), True)
    program = parse_arguments(["--no-python", "bash", "-c", "true"])
    assert (program.command, program.python) == (("bash", "-c", "true"), False)


def test_a_source_in_place_of_a_script_takes_all_other_words() -> None:
    found = parse_arguments(["--nproc-per-node", "2", "x", "-m"], script="<c>")
    assert (found.ranks_per_node, found.command) == (2, ("<c>", "x", "-m"))
    assert parse_arguments([], script="<c>").command == ("<c>",)
    assert parse_arguments(["--standalone", "--", "--lr", "1"], script="<c>").command == (
        "<c>", "--lr", "1",
    )  # fmt: skip
    assert parse_arguments(["--standalone", "--role=a", "x"], script="<c>").command == ("<c>", "x")


def test_the_port_of_the_master_is_taken() -> None:
    found = parse_arguments(["--master-addr", "h1", "--master-port", "4711", "train.py"])
    assert (found.master_addr, found.master_port) == ("h1", 4711)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the following arguments are required: training_script"),
        (["--bogus", "train.py"], "unrecognized arguments: --bogus"),
        (["--nproc-per-node", "many", "train.py"], "--nproc-per-node 'many' is neither a number"),
        (["--nproc-per-node", "0", "train.py"], "there is no rank to start"),
        (["--nproc-per-node", "gpu", "train.py"], "--nproc-per-node gpu: Cuda is not available"),
        (["--nnodes", "4:1", "train.py"], "--nnodes 4:1 is neither a number of nodes"),
        (["--nnodes", "none", "train.py"], "--nnodes none is neither a number of nodes"),
        (["--max-restarts", "-1", "train.py"], "--max-restarts -1 is not a number from 0"),
        (["--shutdown-timeout", "-1", "train.py"], "--shutdown-timeout -1 is not a number of"),
        (["--signals-to-handle", "SIGKILL", "train.py"], "'SIGKILL' is no signal that a program"),
        (["--node-rank=1", "train.py"], "--node-rank is not supported: the ranks of all nodes"),
        (["--tee", "3", "--log-dir", "x", "train.py"], "--log-dir is not supported: .*> FILE"),
        (["--master-port", "x", "train.py"], "--master-port.*: invalid int value: 'x'"),
        (["--master-port", "70000", "train.py"], "--master-port 70000 is not a port"),
        (["--master-addr", "h1", "train.py"], "--master-addr without --master-port"),
        (["--no-python", "-m", "train"], "--no-python goes neither with -m"),
    ],
)
def test_other_arguments_are_refused_with_the_reason(arguments: list[str], text: str) -> None:
    with pytest.raises(TorchrunArgumentError, match=rf"^monarch torchrun: .*{text}"):
        parse_arguments(arguments)


def test_the_table_of_the_docs_has_each_option_and_what_becomes_of_it() -> None:
    parser: Any = import_module("torch.distributed.run").get_args_parser()
    named = [
        option
        for action in parser._actions
        if action.option_strings and action.dest != "help"
        for option in (max((o for o in action.option_strings if "_" not in o), key=len),)
    ]
    table = DOCS.read_text().split("## Options")[1].split("## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| `-")]
    for option in named:
        becomes = [row for row in rows if re.search(rf"`{option}[ `]", row.split("|")[1])]
        assert len(becomes) == 1, option
        is_refused = option.removeprefix("--").replace("-", "_") in arguments._REFUSED
        assert (" refused: " in becomes[0]) == is_refused, option
