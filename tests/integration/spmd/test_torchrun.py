"""`monarch torchrun` and `monarch.spmd.torchrun`: scripts on ranks of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import ActorError, HostMesh, SupervisionError
from monarch.observe import meshes
from monarch.spmd import ScriptError, torchrun
from tests.conftest import Faults
from tests.integration.commands import monarch

SCRIPT = """
import os, sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1 << 18)
dist.all_reduce(total)
rank, how = dist.get_rank(), sys.argv[1]
local = os.environ["LOCAL_RANK"]
print(f"rank {rank} of {dist.get_world_size()}: {total[0].item()}, local {local}")
if rank == 1:
    if how == "raise":
        raise ValueError("a bad batch")
    if how == "exit":
        sys.exit(3)
    if how == "die":
        os._exit(5)
dist.all_reduce(total)
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_script_runs_with_the_options_of_torchrun(script: str) -> None:
    status, out, err = monarch("torchrun", "--nproc-per-node", "2", "--standalone", script, "well")
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == [
        "[torchrun ranks=0] rank 0 of 2: 2.0, local 0",
        "[torchrun ranks=1] rank 1 of 2: 2.0, local 1",
    ]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raise", "the script on torchrun[ranks=1] raised ValueError: a bad batch\n"),
        ("exit", "the script on torchrun[ranks=1] raised ScriptError: {script} exited with 3"),
        ("die", "died while it ran the script: exited with status 5"),
    ],
)
def test_a_rank_that_fails_ends_the_run_and_is_told_once(script: str, how: str, text: str) -> None:
    status, out, err = monarch("torchrun", "--nproc-per-node", "2", script, how)
    assert status == 1
    assert len(out.splitlines()) == 2
    assert err.count(text.format(script=script)) == 1
    assert "CollectiveError" not in err
    assert "runpy" not in err


@pytest.mark.parametrize(
    ("arguments", "expected", "text"),
    [
        (["--nproc-per-node", "2", "absent.py"], 1, "there is no script 'absent.py' in "),
        (["--nnodes", "2", "absent.py"], 2, "--nnodes 2 does not fit: there is 1 host. "),
        (["--bogus", "absent.py"], 2, "unrecognized arguments: --bogus"),
        (["--job", "absent", "absent.py"], 1, "there is no job absent; named jobs: none"),
        (["-m", "absent_module"], 1, "No module named absent_module"),
    ],
)  # fmt: skip
def test_bad_input_is_one_error_with_the_remedy(
    arguments: list[str], expected: int, text: str
) -> None:
    status, out, err = monarch("torchrun", *arguments)
    assert (status, out) == (expected, "")
    assert text in err
    assert "Traceback" not in err


def test_the_help_has_torchruns_own_options() -> None:
    status, out, _ = monarch("torchrun", "--help")
    assert status == 0
    assert out.startswith("usage: monarch torchrun [--job JOB[:MESH]] [options of torchrun] SCRIPT")
    assert "--nproc-per-node" in out


def test_a_program_may_be_no_python() -> None:
    status, out, err = monarch(
        "torchrun", "--nproc-per-node", "2", "--no-python", "bash", "-c", "echo $RANK; exit $RANK"
    )
    assert (status, sorted(out.splitlines())) == (
        1, ["[torchrun ranks=0] 0", "[torchrun ranks=1] 1"],
    )  # fmt: skip
    assert "ranks=1] raised ScriptError: bash exited with 1" in err


# --- from a program -------------------------------------------------------------------------------


def test_each_run_has_processes_of_its_own_and_leaves_none(tmp_path: Path) -> None:
    source = (
        "import os, sys\nfrom pathlib import Path\n"
        "Path(sys.argv[1], str(os.getpid())).write_text(os.environ['RANK'])"
    )
    for _ in range(2):
        torchrun(["--nproc-per-node", "2", str(tmp_path)], source=source)
    assert sorted(one.read_text() for one in tmp_path.iterdir()) == ["0", "0", "1", "1"]
    assert meshes() == []


def test_the_error_of_a_run_has_all_that_raised_by_themselves(script: str) -> None:
    source = "import os\nif int(os.environ['RANK']) % 2:\n    raise KeyError('absent')"
    with pytest.raises(ActorError) as raised:
        torchrun(["--nproc-per-node", "4"], source=source, source_name="<a cell>")
    assert sorted(failure.rank for failure in raised.value.failures) == [1, 3]
    assert raised.value.failures[0].frames[-1].filename == "<a cell>"
    with pytest.raises(ActorError) as raised:
        torchrun(["--nproc-per-node", "2", script, "exit"])
    assert isinstance(raised.value.exception, ScriptError)
    assert raised.value.exception.code == 3
    assert meshes() == []


def test_the_error_of_a_run_names_a_rank_that_died(script: str, faults: Faults) -> None:
    with pytest.raises(SupervisionError) as raised:
        torchrun(["--nproc-per-node", "3", script, "die"])
    assert [failure.rank for failure in raised.value.failures] == [1]
    assert meshes() == []


def test_a_port_that_is_taken_ends_the_run_before_the_script(script: str) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        with pytest.raises(OSError, match=rf"port {port} of .*; leave the port out"):
            torchrun(["--nproc-per-node", "2", "--master-port", port, script, "well"])
    assert meshes() == []


def test_a_run_takes_as_many_hosts_as_it_has_nodes(two_hosts: HostMesh, tmp_path: Path) -> None:
    source = (
        "import os, sys\nfrom pathlib import Path\nimport torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\ntotal = torch.ones(1)\ndist.all_reduce(total)\n"
        "where = f\"{os.environ['RANK']} {os.environ['GROUP_RANK']} {total.item()}\"\n"
        "Path(sys.argv[1], os.environ['RANK']).write_text(where)"
    )
    torchrun(["--nproc-per-node", "2", str(tmp_path)], hosts=two_hosts, source=source)
    assert [(tmp_path / str(rank)).read_text() for rank in range(4)] == [
        "0 0 4.0", "1 0 4.0", "2 1 4.0", "3 1 4.0",
    ]  # fmt: skip
    words = ["--nnodes", "1", "--nproc-per-node", "2", str(tmp_path)]
    torchrun(words, hosts=two_hosts, source=source)
    assert (tmp_path / "1").read_text() == "1 0 2.0"
    with pytest.raises(ValueError, match="--nnodes 3 does not fit: there are 2 hosts"):
        torchrun(["--nnodes", "3"], hosts=two_hosts, source=source)


def test_ranks_on_other_hosts_get_sigterm_after_a_failure(
    two_hosts: HostMesh, tmp_path: Path
) -> None:
    source = (
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "into, rank = Path(sys.argv[1]), os.environ['RANK']\n"
        "def save(number, _frame):\n"
        "    (into / rank).write_text(str(number))\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "if rank == '0':\n"
        "    (into / '0').write_text('has ended')\n"
        "    sys.exit(0)\n"
        "if rank == '1':\n"
        "    while len(list(into.iterdir())) < 3: time.sleep(0.02)\n"
        "    raise ValueError('a bad batch')\n"
        "(into / f'ready{rank}').touch()\n"
        "while True: time.sleep(0.02)"
    )
    with pytest.raises(ActorError, match="a bad batch"):
        torchrun(["--nproc-per-node", "2", str(tmp_path)], hosts=two_hosts, source=source)
    saved = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert saved == {"0": "has ended", "2": "15", "3": "15", "ready2": "", "ready3": ""}


def test_without_torch_the_extra_is_named(run_python: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    out = run_python(
        "import sys\nsys.path[:0] = sys.argv[1].split(':')\n"
        "from monarch._src.cli.program import main\n"
        "import contextlib\n"
        "with contextlib.redirect_stderr(sys.stdout):\n    print(main(['torchrun', 'train.py']))",
        path,
    )
    assert out.startswith("monarch torchrun: torch is not installed on ")
    assert "pip install 'monarch-jupyter[torch]'" in out
    assert out.endswith("\n1\n")
