"""`Workspace`: its directories, their names on hosts, and what it leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monarch.tools.config import Workspace


def test_a_directory_has_its_own_name_and_a_mapping_gives_others(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert Workspace(one).dirs == {one: "one"}
    assert Workspace([one, str(two)]).dirs == {one: "one", two: "two"}
    assert Workspace({one: "", two: "deps/two"}).dirs == {one: "", two: "deps/two"}
    assert Workspace({one: "."}) == Workspace({one: ""})
    assert Workspace.null().dirs == {}


def test_a_relative_directory_and_a_home_directory_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Workspace(".").dirs == {tmp_path: tmp_path.name}
    assert Workspace("~/project").dirs == {tmp_path / "home" / "project": "project"}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"dirs": ["/a/x", "/b/x"]}, ValueError, "/a/x and /b/x would both be 'x' on hosts"),
        ({"dirs": {"/a": "../up"}}, ValueError, "'../up', which is not below the root"),
        ({"dirs": {"/a": "/abs"}}, ValueError, "'/abs', which is not below the root"),
        ({"dirs": {"/a": 3}}, TypeError, "the name of /a on hosts is 3"),
        ({"dirs": [""]}, ValueError, '"" is no directory'),
        ({"dirs": 3}, TypeError, "dirs=3: give a directory"),
        ({"dirs": [3]}, TypeError, "3 is no directory"),
        ({"dirs": ["/a"], "env": "conda"}, ValueError, "environments are not copied"),
        ({"dirs": ["/a"], "exclude": "data"}, TypeError, "give a list of patterns"),
    ],
)
def test_what_makes_no_workspace_is_refused(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        Workspace(**arguments)
    assert text in str(caught.value)


def test_patterns_match_names_or_whole_paths() -> None:
    workspace = Workspace("/a", exclude=["data", "*.ckpt", "runs/*.log"])
    left_out = ["data", "deep/data", "x.ckpt", "runs/1.log", ".git", "p/__pycache__", "x.pyc"]
    assert [path for path in left_out if not workspace.leaves_out(path)] == []
    kept = ["data.py", "deep/runs/1.log", "1.log", ".github", "x.py"]
    assert [path for path in kept if workspace.leaves_out(path)] == []


def test_merge_copies_what_hosts_would_get(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for path in ("x.py", "data/big", "p/__pycache__/x.pyc", "p/y.py"):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(path)
    Workspace(project, exclude=["data"]).merge(tmp_path / "out")
    found = {
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*")
    }
    assert found == {"project", "project/x.py", "project/p", "project/p/y.py"}
