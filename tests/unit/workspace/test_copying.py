"""A workspace on a disk, and its copy: equal after any edits, and nothing of a program is lost."""

from __future__ import annotations

import os
import random
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from monarch._src.host.workspace_paths import (
    WorkspacePaths,
    end_force,
    set_in_force,
    workspace_paths,
)
from monarch._src.mesh.workspaces import Workspace
from monarch._src.workspace.copy import WorkspaceCopy
from monarch._src.workspace.scan import (
    FileChangedError,
    batches,
    directories,
    import_directories,
    pieces,
    scan,
)
from monarch._src.workspace.state.manifest import Changes, File, Folder


class Host:
    """A host whose session directory and copy are below a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = folder / "monarch-abc"
        self.directory.mkdir()
        self.root = folder / "copies"
        monkeypatch.setenv("WORKSPACE_DIR", str(self.root))

    def sync(self, workspace: Workspace) -> tuple[list[str], Changes]:
        """Make the copy equal; the digests that were sent, and what has changed."""
        manifest, files = scan(workspace)
        copy = WorkspaceCopy(self.directory)
        lacking = copy.compare(manifest)
        by_digest = {getattr(entry, "digest", ""): files.get(p) for p, entry in manifest.items()}
        for digest in lacking:
            source = by_digest[digest]
            assert source is not None
            copy.receive((digest, piece) for piece in pieces(source))
        return lacking, copy.commit(directories(workspace), import_directories(workspace, manifest))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    (tmp_path / "host").mkdir()
    return Host(tmp_path / "host", monkeypatch)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path / "project", {"x.py": "x", "p/__init__.py": "", "p/y.py": "y"})
    return tmp_path / "project"


def write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def tree(folder: Path) -> dict[str, object]:
    """All below a folder: contents and permissions of files, targets of links."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name, status = path.relative_to(folder).as_posix(), path.lstat()
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = (path.read_bytes(), stat.S_IMODE(status.st_mode))
    return found


def test_a_copy_equals_its_workspace_and_only_changes_are_sent(host: Host, project: Path) -> None:
    os.chmod(project / "x.py", 0o755)
    lacking, _ = host.sync(Workspace(project))
    assert len(lacking) == 3
    assert tree(host.root / "project") == tree(project)
    assert host.sync(Workspace(project)) == ([], Changes([], [], []))
    write(project, {"x.py": "longer"})
    lacking, made = host.sync(Workspace(project))
    assert (len(lacking), made) == (1, Changes([], [], ["project/x.py"]))
    assert tree(host.root / "project") == tree(project)


def test_empty_files_and_empty_directories_are_copied(host: Host, project: Path) -> None:
    for path in project.rglob("*.py"):
        path.write_text("")
    (project / "empty").mkdir()
    host.sync(Workspace(project))
    assert tree(host.root / "project") == tree(project)


def test_a_copied_file_has_the_time_of_its_original_which_bytecode_is_compared_with(
    host: Host, project: Path
) -> None:
    os.utime(project / "x.py", ns=(1, 1_000_000_001))
    host.sync(Workspace(project))
    assert (host.root / "project" / "x.py").stat().st_mtime_ns == 1_000_000_001


def test_what_a_program_writes_beside_the_files_stays(host: Host, project: Path) -> None:
    host.sync(Workspace(project))
    write(host.root / "project", {"p/out.log": "mine", "p/__pycache__/y.pyc": ""})
    (project / "p" / "y.py").unlink()
    (project / "p" / "__init__.py").unlink()
    (project / "p").rmdir()
    _, made = host.sync(Workspace(project))
    assert made.remove == ["project/p/y.py", "project/p/__init__.py", "project/p"]
    assert set(tree(host.root / "project")) == {"x.py", "p", "p/out.log"}


def test_a_file_of_a_program_is_not_removed_for_one_of_the_workspace(
    host: Host, project: Path
) -> None:
    host.sync(Workspace(project))
    write(host.root / "project", {"new/mine": "mine"})
    write(project, {"new": "a file"})
    with pytest.raises(FileExistsError, match=r"new is a directory with files"):
        host.sync(Workspace(project))
    assert (host.root / "project" / "new" / "mine").read_text() == "mine"
    (host.root / "project" / "new" / "mine").unlink()
    host.sync(Workspace(project))
    assert tree(host.root / "project") == tree(project)


def test_what_was_changed_in_the_copy_is_placed_again(host: Host, project: Path) -> None:
    host.sync(Workspace(project))
    write(host.root / "project", {"x.py": "changed by a rank"})
    (host.root / "project" / "p" / "y.py").unlink()
    lacking, _ = host.sync(Workspace(project))
    assert len(lacking) == 2
    assert tree(host.root / "project") == tree(project)


def test_an_interrupted_transfer_changes_nothing(host: Host, project: Path) -> None:
    host.sync(Workspace(project))
    before = tree(host.root / "project")
    write(project, {"x.py": "second version"})
    manifest, files = scan(Workspace(project))
    copy = WorkspaceCopy(host.directory)
    (digest,) = copy.compare(manifest)
    copy.receive([(digest, b"second ")])
    assert tree(host.root / "project") == before
    assert files["project/x.py"] == project / "x.py"
    host.sync(Workspace(project))
    assert tree(host.root / "project") == tree(project)
    assert not (host.root / ".monarch").exists()


def test_a_link_is_copied_as_it_is_and_sockets_are_left_out(host: Host, project: Path) -> None:
    (project / "link").symlink_to("x.py")
    (project / "away").symlink_to("/nowhere")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(project / "socket"))
        host.sync(Workspace(project))
    (project / "socket").unlink()
    assert tree(host.root / "project") == tree(project)
    (project / "link").unlink()
    (project / "link").mkdir()
    host.sync(Workspace(project))
    assert tree(host.root / "project") == tree(project)


def test_a_virtual_environment_is_left_out_and_imports_stay_with_the_hosts(
    host: Host, project: Path
) -> None:
    write(project, {"env/pyvenv.cfg": "", "env/lib/site-packages/m.py": ""})
    host.sync(Workspace(project))
    assert not (host.root / "project" / "env").exists()
    paths = workspace_paths(host.directory)
    assert paths is not None
    own = str(project / "env" / "lib" / "site-packages")
    assert paths.import_path([str(project), own]) == [str(host.root / "project"), own]


@pytest.mark.parametrize("seed", range(8))
def test_copies_equal_their_workspace_after_any_edits(
    host: Host, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    project = tmp_path / "random"
    project.mkdir()
    names = ["a", "b", "a/b", "b/a", "a/b/c", "c"]
    for _ in range(25):
        for _ in range(draw.randrange(4)):
            edit(draw, project / draw.choice(names), draw.choice(["file", "folder", "link", "no"]))
        host.sync(Workspace(project))
        assert tree(host.root / "random") == tree(project)


def edit(draw: random.Random, path: Path, kind: str) -> None:
    """Make that path a file, a folder or a link, or remove it; if it can be one."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir() and not any(path.iterdir()) and kind != "folder":
        path.rmdir()
    if path.exists() or not path.parent.is_dir() or path.parent.is_symlink():
        return
    if kind == "file":
        path.write_text("text" * draw.randrange(3))
        os.chmod(path, draw.choice([0o644, 0o755, 0o444]))
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(draw.choice(["a", "b", "nowhere"]))


def test_contents_come_in_batches_and_a_file_that_has_changed_is_named(project: Path) -> None:
    (project / "large").write_bytes(bytes(5 << 20))
    manifest, files = scan(Workspace(project))
    source = {
        entry.digest: files[path] for path, entry in manifest.items() if isinstance(entry, File)
    }
    found = list(batches(source, source, 2 << 20))
    assert [sum(len(piece) for _, piece in batch) for batch in found][:2] == [2 << 20, 2 << 20]
    assert sum(len(piece) for batch in found for _, piece in batch) == (5 << 20) + 2
    write(project, {"x.py": "X"})
    with pytest.raises(FileChangedError, match=r"x\.py"):
        list(batches(source, source))
    (project / "x.py").unlink()
    with pytest.raises(FileChangedError, match=r"x\.py"):
        list(batches(source, source))


def test_a_workspace_that_is_too_large_names_its_largest_parts(tmp_path: Path) -> None:
    write(tmp_path / "project", {"data/a": "x" * 3000, "data/b": "x" * 2000, "x.py": "x"})
    with pytest.raises(ValueError, match=r"has 4\.9 KiB.*1000 B.*project/data \(4\.9 KiB\)"):
        scan(Workspace(tmp_path / "project", max_bytes=1000))
    manifest, _ = scan(Workspace(tmp_path / "project", max_bytes=1000, exclude=["data"]))
    assert set(manifest) == {"project", "project/x.py"}


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere is no directory"):
        scan(Workspace(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"file is no directory"):
        scan(Workspace(tmp_path / "file"))


def test_two_files_at_one_path_are_refused_and_two_directories_join(tmp_path: Path) -> None:
    write(tmp_path / "one", {"p/x.py": "1"})
    write(tmp_path / "two", {"p/y.py": "2"})
    both = Workspace({tmp_path / "one": "", tmp_path / "two": "deep/er"})
    assert set(scan(both)[0]) == {"p", "p/x.py", "deep", "deep/er", "deep/er/p", "deep/er/p/y.py"}
    joined = Workspace({tmp_path / "one": "", tmp_path / "two" / "p": "p"})
    assert set(scan(joined)[0]) == {"p", "p/x.py", "p/y.py"}
    write(tmp_path / "two", {"p/x.py": "3"})
    with pytest.raises(ValueError, match=r"one/p/x\.py and .*two/p/x\.py would both be 'p/x\.py'"):
        scan(joined)


# --- paths ----------------------------------------------------------------------------------------


def in_force(root: Path, pairs: Sequence[tuple[str, str]], *imports: str) -> WorkspacePaths:
    return WorkspacePaths(str(root), list(pairs), list(imports))


def test_paths_of_the_client_are_those_of_the_copy_where_there_is_one(tmp_path: Path) -> None:
    write(tmp_path, {"project/src/x.py": ""})
    paths = in_force(tmp_path, [("/home/me/project", "project")], "project")
    assert paths.here("/home/me/project/src") == str(tmp_path / "project" / "src")
    assert paths.here("/home/me/project") == str(tmp_path / "project")
    for other in ("/home/me/project2", "/home/me/project/missing", "/usr/lib"):
        assert paths.here(other) == other
    assert paths.import_path(["/home/me/project/src", "/usr/lib"]) == [
        str(tmp_path / "project"), str(tmp_path / "project" / "src"), "/usr/lib",
    ]  # fmt: skip
    assert paths.import_path(["/usr/lib", "/home/me/project"]) == [
        "/usr/lib", str(tmp_path / "project"),
    ]  # fmt: skip


def test_a_path_in_the_copy_of_another_host_is_that_of_the_own_copy(tmp_path: Path) -> None:
    write(tmp_path, {"project/x.py": ""})
    paths = in_force(tmp_path, [("/home/me/project", "project")])
    assert paths.here("/tmp/monarch_workspace_other/project") == str(tmp_path / "project")
    assert paths.here("/tmp/monarch_workspace_other") == str(tmp_path)


def test_a_copy_is_in_force_until_it_is_ended(tmp_path: Path) -> None:
    assert workspace_paths(tmp_path) is None
    end_force(tmp_path)
    set_in_force(tmp_path, in_force(tmp_path, [("/a", "b")]))
    assert workspace_paths(str(tmp_path)) == in_force(tmp_path, [("/a", "b")])
    end_force(tmp_path)
    assert workspace_paths(tmp_path) is None


def test_the_root_of_a_workspace_may_be_the_copy_itself(host: Host, project: Path) -> None:
    host.sync(Workspace({project: ""}))
    assert set(tree(host.root)) == set(tree(project))
    assert Folder() == scan(Workspace(project))[0]["project"]
