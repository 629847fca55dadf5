from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec

from monarch._src.admin.server_files import RECORD, ServerRecord, read_record, write_private
from monarch._src.system.process_table import began_of


def record(pid: int, began: str) -> ServerRecord:
    return ServerRecord("http://127.0.0.1:1", "", "read-me", "own-me", pid, began)


def test_a_server_that_runs_is_found_by_its_record(tmp_path: Path) -> None:
    written = record(os.getpid(), began_of(os.getpid()))
    write_private(tmp_path / RECORD, msgspec.json.encode(written))
    assert stat.S_IMODE((tmp_path / RECORD).stat().st_mode) == 0o600
    assert read_record(tmp_path) == written
    assert "own-me" not in repr(written)


def test_the_record_of_a_server_that_was_killed_is_none(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)
    write_private(tmp_path / RECORD, msgspec.json.encode(record(ended.pid, "123")))
    assert read_record(tmp_path) is None
    write_private(tmp_path / RECORD, msgspec.json.encode(record(os.getpid(), "another time")))
    assert read_record(tmp_path) is None


def test_what_is_no_record_is_none(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    (tmp_path / RECORD).write_text("{")
    assert read_record(tmp_path) is None
