"""`monarch keys`, as a shell runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.integration.commands import monarch


def test_it_makes_the_keys_of_a_job_and_says_which_file_goes_where(tmp_path: Path) -> None:
    status, out, err = monarch("keys", "make", str(tmp_path / "job"), "--job", "training")
    assert (status, err) == (0, "")
    assert out.startswith(f"made the keys of job training in {tmp_path / 'job'}\n")
    files = sorted(path.name for path in (tmp_path / "job").iterdir())
    assert files == ["job.public", "observer.key", "owner.key", "worker.key"]
    assert all(name in out for name in files)


def test_nothing_that_it_prints_holds_a_key(tmp_path: Path) -> None:
    made = monarch("keys", "make", str(tmp_path / "job"))
    (tmp_path / "job" / "owner.key").chmod(0o644)
    shown = monarch("keys", "show", str(tmp_path / "job"))
    for role in ("worker", "owner", "observer"):
        pair = json.loads((tmp_path / "job" / f"{role}.key").read_text())
        for text in (*made[1:], *shown[1:]):
            assert pair["secret"] not in text
            assert pair["public"] not in text


def test_it_shows_whose_keys_there_are_and_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    monarch("keys", "make", str(tmp_path / "job"))
    (tmp_path / "job" / "owner.key").chmod(0o644)
    (tmp_path / "job" / "observer.key").unlink()
    status, out, err = monarch("keys", "show", str(tmp_path / "job"))
    assert (status, err) == (0, "")
    assert re.search(r"^  worker +[0-9a-f]{16}  yes$", out, re.MULTILINE)
    assert re.search(
        r"^  owner +[0-9a-f]{16}  no: others can .* run `chmod 600 .*owner.key`", out, re.MULTILINE
    )
    assert re.search(r"^  observer +[0-9a-f]{16}  no$", out, re.MULTILINE)


def test_it_replaces_nothing_and_says_so(tmp_path: Path) -> None:
    monarch("keys", "make", str(tmp_path / "job"))
    status, out, err = monarch("keys", "make", str(tmp_path / "job"))
    assert (status, out) == (1, "")
    assert err.startswith(f"monarch keys: {tmp_path / 'job'} exists already")
    status, out, err = monarch("keys", "show", str(tmp_path))
    assert (status, out) == (1, "")
    assert "there is no" in err
    assert "Traceback" not in err
