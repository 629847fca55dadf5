from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from monarch._src.admin.audit import ActionLog, usual_path


def test_each_action_is_a_line_with_its_time(tmp_path: Path) -> None:
    log = ActionLog(tmp_path / "state" / "actions.jsonl")
    log.write("begun", action="kill", target="proc:a:1:0")
    log.write("ended", action="kill", status=200, text="x" * 5000)
    log.close()
    log.close()
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    first, second = map(json.loads, log.path.read_text().splitlines())
    assert (first["event"], first["target"]) == ("begun", "proc:a:1:0")
    assert first["time"].endswith("+00:00")
    assert (second["status"], len(second["text"])) == ("200", 1000)


def test_a_file_that_others_could_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "actions.jsonl"
    path.touch(0o600)
    path.chmod(0o666)
    with pytest.raises(PermissionError, match="chmod 600"):
        ActionLog(path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    os.symlink(tmp_path / "elsewhere", tmp_path / "actions.jsonl")
    with pytest.raises(OSError, match="symbolic link"):
        ActionLog(tmp_path / "actions.jsonl")


def test_the_usual_file_is_in_the_state_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert usual_path() == tmp_path / "monarch" / "admin-actions.jsonl"
