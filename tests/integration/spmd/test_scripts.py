"""Scripts begin and end under `monarch torchrun` as under torchrun, which runs them all too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from monarch.actor import ActorError, SupervisionError
from monarch.observe import meshes
from monarch.spmd import SPMDActor, torchrun
from tests.integration.spmd.conftest import Trainers
from tests.integration.spmd.scripts import (
    AFTER_A_FAILURE,
    ENDINGS,
    SCRIPTS,
    Script,
    environment,
    records,
)

QUICK = (*ENDINGS, *AFTER_A_FAILURE)
BY_NAME = pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=script.name, marks=[] if script in QUICK else pytest.mark.slow)
        for script in SCRIPTS
    ],
)
PATIENCE_S = 120.0


@pytest.fixture
def into(tmp_path: Path) -> Path:
    path = tmp_path / "into"
    path.mkdir()
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "folder of the script"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@BY_NAME
def test_a_script_ends_as_an_interpreter_does(
    script: Script, folder: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTO", str(into))
    words = script.write(folder)
    if script.succeeds:
        torchrun(words)
    else:
        with pytest.raises((ActorError, SupervisionError)) as raised:
            torchrun(words)
        assert script.says in str(raised.value)
    assert records(into) == script.expected()
    assert meshes() == []


@pytest.mark.slow
@BY_NAME
@pytest.mark.parametrize("program", ["torch.distributed.run", "monarch"])
def test_both_torchruns_agree(program: str, script: Script, folder: Path, into: Path) -> None:
    command = [program, *(["torchrun"] if program == "monarch" else [])]
    ended = subprocess.run(
        [sys.executable, "-m", *command, *script.write(folder)], cwd=folder,
        env=environment(into), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (ended.returncode == 0, records(into)) == (script.succeeds, script.expected())
    assert script.says in ended.stdout + ended.stderr


def test_a_failure_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    source = (
        "import sys\nbefore = sys.excepthook\n"
        "sys.excepthook = lambda *error: (print('a hook'), before(*error))\n"
        "raise ValueError('a bad batch')"
    )
    with pytest.raises(ActorError, match="a bad batch"):
        torchrun(["--nproc-per-node", "1"], source=source)
    out, err = capfd.readouterr()
    assert out == "[torchrun ranks=0] a hook\n"
    assert "a bad batch" not in err


def test_the_default_hook_still_prints_other_errors(capfd: pytest.CaptureFixture[str]) -> None:
    source = (
        "import sys\n"
        "try: raise ValueError('a bad batch')\n"
        "except ValueError: sys.excepthook(*sys.exc_info())"
    )
    torchrun(["--nproc-per-node", "1"], source=source)
    assert "[torchrun ranks=0] ValueError: a bad batch\n" in capfd.readouterr().err


# --- a script in a mesh that goes on --------------------------------------------------------------


def test_a_mesh_that_goes_on_keeps_its_threads_and_exit_functions(
    trainers: Trainers, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(
        "import atexit, sys, threading\n"
        "from pathlib import Path\n"
        "def note(text, path=Path(sys.argv[1])):\n"
        "    with path.open('a') as record: record.write(text)\n"
        "go = threading.Event()\n"
        "sys.go = go\n"
        "threading.Thread(target=lambda: (go.wait(), note('thread '))).start()\n"
        "atexit.register(note, 'exit')\n"
    )
    (tmp_path / "next.py").write_text("import sys\nsys.go.set()\n")
    record = tmp_path / "record"
    procs = trainers(gpus=1)
    actors = procs.spawn("script", SPMDActor)
    host, port = actors.get_host_port.call_one().get()
    assert actors.main.call_one(host, port, [str(tmp_path / "script.py"), str(record)]).get()
    assert not record.exists()
    assert actors.main.call_one(host, port, [str(tmp_path / "next.py"), str(record)]).get()
    procs.stop().get()
    assert record.read_text() == "thread exit"


def test_a_script_in_a_mesh_that_goes_on_writes_its_files(
    trainers: Trainers, tmp_path: Path
) -> None:
    path = tmp_path / "script.py"
    path.write_text("import sys\nfile = open(sys.argv[1], 'w')\nfile.write('buffered')\n"
                    "def use(): return file\n")  # fmt: skip
    actors = trainers(gpus=1).spawn("script", SPMDActor)
    host, port = actors.get_host_port.call_one().get()
    actors.main.call_one(host, port, [str(path), str(tmp_path / "data")]).get()
    assert (tmp_path / "data").read_text() == "buffered"
