"""`sync_workspace`: ranks on other hosts import the program's own files, as they are now."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._src.workspace import sync
from monarch._src.workspace.scan import scan
from monarch.actor import (
    Actor,
    ActorError,
    HostMesh,
    ProcMesh,
    SupervisionError,
    endpoint,
    shutdown_context,
    this_host,
)
from monarch.tools.config import Workspace
from tests.conftest import Faults
from tests.workers import PATIENCE_S, TRUST_ALL, Worker, attached, worker, workers

STEPS = """
from monarch.actor import Actor, endpoint
from {name}.scale import FACTOR

class Steps(Actor):
    def __init__(self):
        self.steps = 0

    @endpoint
    def step(self):
        self.steps += 1
        return self.steps * FACTOR()

    @endpoint
    def file(self):
        return __file__
"""


class Project:
    """A package of a name that nothing else has, in a directory of the import path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"steps_{secrets.token_hex(4)}"
        self.write("__init__.py", "")
        self.write("actors.py", STEPS.format(name=self.name))
        self.factor(1)

    def write(self, file: str, text: str) -> None:
        (self.folder / self.name).mkdir(parents=True, exist_ok=True)
        (self.folder / self.name / file).write_text(text)

    def factor(self, number: int) -> None:
        self.write("scale.py", f"def FACTOR():\n    return {number}\n")

    def steps(self, procs: ProcMesh) -> Any:
        """Its actors on that mesh."""
        module = __import__(f"{self.name}.actors", fromlist=["Steps"])
        return procs.spawn("steps", module.Steps)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    made = Project(tmp_path / "project")
    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] == made.name]:
        del sys.modules[name]


@pytest.fixture
def hosts(two: list[Worker]) -> Iterator[HostMesh]:
    """Two hosts without meshes, which have no copy in force."""
    yield attached(two)
    shutdown_context(reason="the next client comes")


def roots_of(steps: Any) -> list[Path]:
    """The root of the copy that each rank imports from."""
    return [Path(file).parents[2] for file in steps.file.call().get(timeout=PATIENCE_S).values()]


class Looks(Actor):
    @endpoint
    def path(self) -> list[str]:
        return sys.path

    @endpoint
    def place(self) -> tuple[str, str]:
        return os.getcwd(), os.environ.get("WORKSPACE_DIR", "")

    @endpoint
    def write(self, name: str) -> None:
        Path(os.environ["WORKSPACE_DIR"], name).write_text("of a rank")

    @endpoint
    def sync(self, hosts: HostMesh) -> None:
        hosts.sync_workspace(".")

    @endpoint
    def path_elsewhere(self, hosts: HostMesh) -> list[str]:
        procs = hosts.spawn_procs(name="nested")
        found: Any = procs.spawn("looks", Looks).path.call_one().get()
        procs.stop().get()
        return found


def test_ranks_that_run_and_ranks_to_come_import_the_copy_of_their_host(
    hosts: HostMesh, project: Project
) -> None:
    before = hosts.spawn_procs({"gpus": 2}, name="before")
    before.initialized.get(timeout=PATIENCE_S)
    done = hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    assert (done.hosts, done.files, done.sent, done.problems) == (2, 3, 3, ())
    after = hosts.spawn_procs({"gpus": 2}, name="after")
    roots = roots_of(project.steps(before))
    assert roots == roots_of(project.steps(after))
    assert roots[0] == roots[1] != roots[2] == roots[3]
    assert project.folder not in roots
    path = after.spawn("looks", Looks).path.call().get(timeout=PATIENCE_S)
    assert not any(str(project.folder) in one for one in path.values())


def test_an_edit_reaches_live_actors_which_keep_their_state(
    hosts: HostMesh, project: Project
) -> None:
    hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    steps = project.steps(hosts.spawn_procs({"gpus": 2}))
    assert list(steps.step.call().get(timeout=PATIENCE_S).values()) == [1] * 4
    project.factor(10)
    done = hosts.sync_workspace(project.folder, auto_reload=True).get(timeout=PATIENCE_S)
    assert (done.sent, done.placed, done.removed, done.problems) == (1, 1, 0, ())
    assert list(steps.step.call().get(timeout=PATIENCE_S).values()) == [20] * 4
    again = hosts.sync_workspace(project.folder, auto_reload=True).get(timeout=PATIENCE_S)
    assert repr(again) == "3 files on 2 hosts: nothing has changed"


def test_a_module_that_cannot_be_loaded_is_named_and_the_old_code_stays(
    hosts: HostMesh, project: Project
) -> None:
    hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    steps = project.steps(hosts.spawn_procs({"gpus": 1}, name="workers"))
    steps.step.call().get(timeout=PATIENCE_S)
    project.write("scale.py", "def FACTOR(:\n")
    done = hosts.sync_workspace(project.folder, auto_reload=True).get(timeout=PATIENCE_S)
    (problem,) = done.problems
    assert f"{project.name}.scale can't be reloaded on workers: SyntaxError" in problem
    assert list(steps.step.call().get(timeout=PATIENCE_S).values()) == [2, 2]


def test_the_working_directory_and_a_variable_lead_to_the_copy(
    hosts: HostMesh, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder / project.name)
    hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    looks = hosts.spawn_procs().spawn("looks", Looks)
    for cwd, root in looks.place.call().get(timeout=PATIENCE_S).values():
        # A worker of a program has the directory that it was started in; see `worker --cwd`.
        assert Path(root, "project", project.name, "scale.py").is_file()
        assert cwd != str(project.folder / project.name)


def test_a_slice_of_hosts_gets_it_alone_and_a_host_that_comes_later_all_of_it(
    hosts: HostMesh, project: Project
) -> None:
    first = hosts.slice(hosts=0)
    assert first.sync_workspace(project.folder).get(timeout=PATIENCE_S).hosts == 1
    looks = hosts.spawn_procs().spawn("looks", Looks)
    places = list(looks.place.call().get(timeout=PATIENCE_S).values())
    assert places[0][1]
    assert not places[1][1]
    project.factor(2)
    done = hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    assert (done.hosts, done.sent) == (2, 3)  # one file to both, two to the second
    assert len(roots_of(project.steps(hosts.spawn_procs(name="both")))) == 2


def test_what_ranks_write_stays_and_what_is_removed_goes(hosts: HostMesh, project: Project) -> None:
    project.write("old.py", "")
    hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    looks = hosts.spawn_procs().spawn("looks", Looks)
    looks.write.call("project/out.txt").get(timeout=PATIENCE_S)
    (project.folder / project.name / "old.py").unlink()
    done = hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    assert (done.files, done.sent, done.removed) == (3, 0, 1)
    for _, root in looks.place.call().get(timeout=PATIENCE_S).values():
        assert Path(root, "project", "out.txt").read_text() == "of a rank"
        assert not Path(root, "project", project.name, "old.py").exists()


def test_a_large_file_arrives_whole(hosts: HostMesh, project: Project) -> None:
    contents = os.urandom(20 << 20)
    (project.folder / "weights.bin").write_bytes(contents)
    done = hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    assert done.sent_bytes > len(contents)
    looks = hosts.spawn_procs().spawn("looks", Looks)
    for _, root in looks.place.call().get(timeout=PATIENCE_S).values():
        assert Path(root, "project", "weights.bin").read_bytes() == contents


@pytest.mark.parametrize("times", [1, 3])
def test_a_file_that_changes_after_it_was_scanned_is_scanned_again_or_named(
    hosts: HostMesh, project: Project, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    log = project.folder / "out.log"
    log.write_text(project.name)
    changes = iter(range(times))

    def scanned(workspace: Workspace) -> object:
        found = scan(workspace)
        if next(changes, None) is not None:
            log.write_text(log.read_text() + " and more")
        return found

    monkeypatch.setattr(sync, "scan", scanned)
    done = hosts.sync_workspace(project.folder)
    if times < sync.SCANS:
        assert done.get(timeout=PATIENCE_S).sent == 4
    else:
        with pytest.raises(RuntimeError, match=r"out\.log changes while it is sent.*exclude="):
            done.get(timeout=PATIENCE_S)
        leave_out = Workspace(project.folder, exclude=["*.log"])
        assert hosts.sync_workspace(leave_out).get(timeout=PATIENCE_S).files == 3


def test_a_restarted_rank_of_an_older_mesh_uses_the_copy(hosts: HostMesh, project: Project) -> None:
    mesh = hosts.spawn_procs({"gpus": 1})
    mesh.initialized.get(timeout=PATIENCE_S)
    hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    steps = project.steps(mesh)
    roots = roots_of(steps)
    mesh.slice(hosts=1).restart().get(timeout=PATIENCE_S)
    assert roots_of(steps) == roots


def test_modules_of_the_workspace_can_be_preloaded(hosts: HostMesh, project: Project) -> None:
    hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    mesh = hosts.spawn_procs({"gpus": 2}, preload=[f"{project.name}.scale"])
    assert project.folder not in roots_of(project.steps(mesh))


def test_a_mesh_that_an_actor_spawns_on_another_host_uses_the_copy_there(
    hosts: HostMesh, project: Project
) -> None:
    hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    looks = hosts.spawn_procs().spawn("looks", Looks)
    roots = [root for _, root in looks.place.call().get(timeout=PATIENCE_S).values()]
    path = (
        looks.slice(hosts=0).path_elsewhere.call_one(hosts.slice(hosts=1)).get(timeout=PATIENCE_S)
    )
    assert f"{roots[1]}/project" in path
    assert not any(one.startswith(roots[0]) for one in path)


def test_a_next_client_has_no_copy_until_it_syncs_and_then_sends_nothing_anew(
    two: list[Worker], hosts: HostMesh, project: Project
) -> None:
    hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    shutdown_context(reason="the next client comes")
    later = attached(two)
    looks = later.spawn_procs().spawn("looks", Looks)
    assert [root for _, root in looks.place.call().get(timeout=PATIENCE_S).values()] == ["", ""]
    done = later.sync_workspace(project.folder).get(timeout=PATIENCE_S)
    assert (done.hosts, done.sent) == (2, 0)
    assert project.folder not in roots_of(project.steps(later.spawn_procs()))


def test_the_copy_ends_with_its_worker(project: Project, agent_errors: object) -> None:
    with workers(1) as found:
        hosts = attached(found)
        hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
        (root,) = roots_of(project.steps(hosts.spawn_procs()))
        assert root.is_dir()
        hosts.shutdown().get(timeout=PATIENCE_S)
        assert found[0].ended() == 0
        assert not root.exists()
        shutdown_context(reason="the worker has ended")


def test_a_host_that_cannot_place_the_files_says_why_and_none_changes(
    project: Project, tmp_path: Path, agent_errors: object
) -> None:
    (tmp_path / "taken").touch()
    listen = ("--address", "tcp://127.0.0.1:0", "--keys", TRUST_ALL)
    taken = {"WORKSPACE_DIR": str(tmp_path / "taken")}
    with worker(*listen) as good, worker(*listen, env=taken) as bad:
        hosts = attached([good, bad])
        with pytest.raises(ActorError, match=r"FileExistsError.*taken"):
            hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
        looks = hosts.spawn_procs().spawn("looks", Looks)
        roots = [root for _, root in looks.place.call().get(timeout=PATIENCE_S).values()]
        assert roots == ["", str(tmp_path / "taken")]
        shutdown_context(reason="the workers are about to end")


def test_a_worker_places_the_copy_where_its_variable_says(
    project: Project, tmp_path: Path, agent_errors: object
) -> None:
    listen = ("--address", "tcp://127.0.0.1:0", "--keys", TRUST_ALL)
    with worker(*listen, env={"WORKSPACE_DIR": str(tmp_path / "there")}) as one:
        hosts = attached([one])
        hosts.sync_workspace(Workspace({project.folder: "code"})).get(timeout=PATIENCE_S)
        assert roots_of(project.steps(hosts.spawn_procs())) == [tmp_path / "there"]
        assert (tmp_path / "there" / "code" / project.name / "scale.py").is_file()
        shutdown_context(reason="the worker is about to end")


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="needs root, unshare")
def test_a_host_without_the_files_imports_them_after_a_sync(
    project: Project, agent_errors: object, faults: Faults
) -> None:
    """The worker has a file system of its own in the place of the project."""
    hide = f'mount -t tmpfs none {project.folder} && exec "$@"'
    listen = ("--address", "tcp://127.0.0.1:0", "--keys", TRUST_ALL)
    with worker(*listen, before=["unshare", "--mount", "sh", "-c", hide, "sh"]) as one:
        hosts = attached([one])
        with pytest.raises(SupervisionError, match=f"No module named '{project.name}'") as caught:
            project.steps(hosts.spawn_procs()).step.call().get(timeout=PATIENCE_S)
        assert f"`hosts.sync_workspace('{project.folder}')` copies that" in str(caught.value)
        faults.take_ranks({0})
        hosts.sync_workspace(project.folder).get(timeout=PATIENCE_S)
        steps = project.steps(hosts.spawn_procs())
        assert list(steps.step.call().get(timeout=PATIENCE_S).values()) == [1]
        shutdown_context(reason="the worker is about to end")


def test_on_its_own_host_a_program_has_its_files_already(project: Project) -> None:
    done = this_host().sync_workspace(project.folder).get(timeout=PATIENCE_S)
    assert repr(done) == "nothing to send: this host has the files"


def test_what_cannot_be_done_is_refused_before_anything_is_sent(
    hosts: HostMesh, project: Project, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="conda=True: environments are not copied"):
        hosts.sync_workspace(project.folder, conda=True)
    with pytest.raises(FileNotFoundError, match="nowhere is no directory"):
        hosts.sync_workspace(tmp_path / "nowhere").get(timeout=PATIENCE_S)
    (project.folder / "big").write_bytes(bytes(1 << 20))
    with pytest.raises(ValueError, match=re.escape("project/big (1.0 MiB)")):
        hosts.sync_workspace(Workspace(project.folder, max_bytes=1000)).get(timeout=PATIENCE_S)
    looks = hosts.spawn_procs().spawn("looks", Looks)
    with pytest.raises(ActorError, match="sync_workspace is for the program that attached"):
        looks.sync.call(hosts).get(timeout=PATIENCE_S)
    places = looks.place.call().get(timeout=PATIENCE_S)
    assert [root for _, root in places.values()] == ["", ""]
