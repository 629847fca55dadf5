"""The audit log: whole lines, private, and bounded whatever happens."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from monarch._src.net.hosts.audit import OTHERS, PERIOD, Audit
from monarch._src.rate_limited_log import EACH, KINDS, OF_ONE


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_note_is_a_line_with_the_time_and_the_facts(tmp_path: Path) -> None:
    clock = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone.utc)
    audit = Audit(tmp_path / "log", lambda: clock)
    audit.note("refused", why="because", address="10.0.0.1")
    audit.close()
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    assert lines(tmp_path / "log") == [
        {
            "time": "2026-01-02T03:04:05.678Z", "what": "refused", "why": "because",
            "address": "10.0.0.1",
        }
    ]  # fmt: skip


def test_a_log_is_gone_on_with_and_never_begun_anew(tmp_path: Path) -> None:
    for number in range(3):
        audit = Audit(tmp_path / "log")
        audit.note("linked", node=str(number))
        audit.close()
        audit.close()
    assert [line["node"] for line in lines(tmp_path / "log")] == ["0", "1", "2"]


def test_what_happens_often_is_counted_and_the_last_number_is_exact(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "log")
    for _ in range(1000):
        audit.note("refused", why="flood")
    audit.note("refused", why="another")
    assert audit.count("refused") == 1001
    audit.close()
    written = lines(tmp_path / "log")
    counts = [line.get("count", 1) for line in written if line["why"] == "flood"]
    assert counts == [*range(1, EACH + 1), 16, 32, 64, 128, 256, 512, 1000]
    assert [line for line in written if line["why"] == "another"] != []


def test_kinds_beyond_a_bound_are_one_kind(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "log")
    for number in range(3 * KINDS):
        audit.note("refused", why="x" * 5000, address=str(number))
    assert audit.count("refused") == 3 * KINDS
    audit.close()
    written = lines(tmp_path / "log")
    assert len(written) < KINDS + 40
    assert written[-1]["count"] == 2 * KINDS
    assert max(len(line["why"]) for line in written) == 1000


def test_who_is_refused_for_a_thousand_reasons_hides_nobody_else(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "log")
    for number in range(3 * KINDS):
        audit.note("refused", why=f"byte {number} is wrong", key="ab", node="worker-8")
    audit.note("refused", why="it has no key", address="10.0.0.9")
    audit.close()
    written = lines(tmp_path / "log")
    assert len(written) < OF_ONE + 40
    (other,) = [line for line in written if line.get("address")]
    assert (other["why"], other["address"]) == ("it has no key", "10.0.0.9")
    rest = [line for line in written if line["why"] == OTHERS]
    assert {line["key"] for line in rest} == {"ab"}
    assert max(line.get("count", 1) for line in rest) == 3 * KINDS - OF_ONE


def test_what_operators_do_is_written_each_time_whatever_strangers_do(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "log")
    for number in range(KINDS + 1):
        audit.note("refused", why="it has no key", address=str(number))
    for _ in range(3 * EACH):
        audit.note("kill", node="client-1", mesh="workers", ranks="3", signal="SIGKILL")
    for number in range(2 * KINDS):
        audit.note("attach", node=f"client-{number}")
    audit.close()
    written = lines(tmp_path / "log")
    assert sum(line["what"] == "kill" for line in written) == 3 * EACH
    assert [line["node"] for line in written if line["what"] == "attach"] == [
        f"client-{number}" for number in range(2 * KINDS)
    ]
    assert not any("count" in line for line in written if line["what"] != "refused")


def test_counting_begins_anew_after_a_while_and_what_was_counted_is_told(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    audit = Audit(tmp_path / "log", lambda: now)
    for number in range(2 * KINDS):
        audit.note("linked", node=f"client-{number}", key="ab")
    for _ in range(EACH + 3):
        audit.note("refused", why="it has no key", address="10.0.0.9")
    now += PERIOD
    audit.note("linked", node="client-x", key="ab")
    audit.close()
    written = lines(tmp_path / "log")
    assert [line.get("node") for line in written if line["what"] == "linked"][-1:] == ["client-x"]
    told = [line.get("count", 1) for line in written if line["what"] == "refused"]
    assert told == [*range(1, EACH + 1), EACH + 3]
    assert audit.count("linked") == 2 * KINDS + 1


def test_text_of_strangers_cannot_break_a_line(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "log")
    audit.note("refused", node='a"\n{"what":"linked"}\x00\u2028')
    audit.close()
    assert [line["what"] for line in lines(tmp_path / "log")] == ["refused"]


def test_lines_of_several_threads_and_processes_stay_whole(tmp_path: Path) -> None:
    def write(name: str) -> None:
        audit = Audit(tmp_path / "log")
        for number in range(300):
            audit.note("linked", node=f"{name}-{number}")
        audit.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({line["node"] for line in lines(tmp_path / "log")}) == 1200


@pytest.mark.parametrize("mode", [0o640, 0o602])
def test_a_file_that_others_could_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "log").touch()
    (tmp_path / "log").chmod(mode)
    with pytest.raises(PermissionError, match="run `chmod 600"):
        Audit(tmp_path / "log")
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with pytest.raises(OSError, match="symbolic"):
        Audit(tmp_path / "link")
