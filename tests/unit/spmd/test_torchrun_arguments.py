"""torchrun's arguments, read by torch's own parser."""

from __future__ import annotations

import pytest

from monarch._src.spmd.torchrun_arguments import Launch, TorchrunArgumentError, parse_arguments


def test_options_and_the_words_of_the_script_are_told_apart() -> None:
    found = parse_arguments(["--nproc-per-node=4", "--nnodes", "2", "train.py", "--nnodes", "7"])
    assert found == Launch(
        4, 2, ("train.py", "--nnodes", "7"), True,
        {"ROLE_NAME": "default", "OMP_NUM_THREADS": "1"}, None, None,
    )  # fmt: skip


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
        (["--nnodes", "1:4", "train.py"], "--nnodes 1:4 is not a number of nodes"),
        (["--nnodes", "none", "train.py"], "--nnodes none is not a number of nodes"),
        (["--max-restarts", "3", "train.py"], "--max-restarts is not supported"),
        (["--node-rank=1", "train.py"], "--node-rank is not supported: the ranks of all nodes"),
        (["--tee", "3", "train.py"], r"--tee is not supported: .*\| tee FILE"),
        (["--master-port", "x", "train.py"], "--master-port.*: invalid int value: 'x'"),
        (["--master-port", "70000", "train.py"], "--master-port 70000 is not a port"),
        (["--master-addr", "h1", "train.py"], "--master-addr without --master-port"),
        (["--no-python", "-m", "train"], "--no-python goes neither with -m"),
    ],
)
def test_other_arguments_are_refused_with_the_reason(arguments: list[str], text: str) -> None:
    with pytest.raises(TorchrunArgumentError, match=rf"^monarch torchrun: .*{text}"):
        parse_arguments(arguments)
