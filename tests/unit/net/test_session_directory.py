"""Session directories: private, short, and swept only when their session is gone."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch._src.net import session_directory as sessions


@pytest.fixture
def base(own_base_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty place with a short name for session directories."""
    place = own_base_directory / "base"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    yield place
    sessions.remove(place)


def too_long(base: Path) -> Path:
    """A directory of the longest name that is one byte too long to hold sockets."""
    room = sessions._LONGEST - len(sessions.PREFIX) - 9
    name = "x" * (room - len(str(base)))
    path = base / name
    path.mkdir()
    assert len(str(path)) == room + 1
    return path


def test_a_session_directory_can_be_entered_by_its_user_only(base: Path) -> None:
    directory = sessions.make()
    found = directory.stat()
    assert stat.S_IMODE(found.st_mode) == 0o700
    assert found.st_uid == os.getuid()
    assert directory.parent == base


def test_the_mask_of_the_user_makes_it_no_less_private(base: Path) -> None:
    before = os.umask(0)
    try:
        directory = sessions.make()
        held = sessions.hold(directory)
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / sessions.LOCK).stat().st_mode) == 0o600
    os.close(held)


def test_sockets_in_it_have_names_short_enough_for_every_system(base: Path) -> None:
    longest = sessions.address_of(sessions.make(), "client-0123456789abcdef.sock")
    assert len(longest.removeprefix("ipc://")) <= 103


def test_the_users_runtime_directory_comes_first(base: Path) -> None:
    assert sessions.base_directory() == base


@pytest.mark.parametrize("unusable", ["missing", "a file", "too long", "not writable"])
def test_one_that_cannot_be_used_is_passed_over(
    unusable: str, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if unusable == "a file":
        (base / unusable).touch()
    if unusable == "not writable":
        (base / unusable).mkdir(mode=0o500)
        monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(base / unusable))
    path = too_long(base) if unusable == "too long" else base / unusable
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    assert sessions.base_directory() != path


def test_the_longest_name_that_fits_is_used(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = too_long(base)
    fits = fits.rename(fits.with_name(fits.name[:-1]))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(fits))
    directory = sessions.make()
    assert directory.parent == fits
    assert len(f"{directory}/client-0123456789abcdef.sock") <= 103


def test_where_no_directory_can_be_used_the_remedy_is_named(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(OSError, match="set TMPDIR to one"):
        sessions.base_directory()


# --- in memory ------------------------------------------------------------------------------------


def namespaces(monkeypatch: pytest.MonkeyPatch, **inodes: int) -> None:
    """Be in these, which are those of the host unless said."""
    monkeypatch.setattr(sessions, "_namespace", (sessions._INITIAL | inodes).__getitem__)


@pytest.fixture
def memory(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for the file system in memory, in a container that has its own and no logind.

    `base` is no runtime directory then, but the temporary one.
    """
    place = base / "memory"
    place.mkdir(mode=0o700)
    monkeypatch.setattr(sessions, "_IN_MEMORY", str(place))
    monkeypatch.setattr(sessions, "_LOGIND", str(tmp_path / "no systemd"))
    namespaces(monkeypatch, ipc=1, pid=2)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(base))
    return place


def test_without_a_runtime_directory_sessions_are_in_memory(memory: Path) -> None:
    assert sessions.make().parent == memory


def test_what_may_become_large_is_not(memory: Path, base: Path) -> None:
    assert sessions.base_directory(logs=True) == base


def test_a_runtime_directory_comes_before_memory(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")
    assert sessions.base_directory() == Path("/tmp")


def test_where_logind_may_remove_what_is_in_memory_sessions_are_elsewhere(
    memory: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_LOGIND", str(tmp_path))
    assert sessions.base_directory() == base


def test_on_systems_without_namespaces_too(
    memory: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(kind: str) -> int:
        raise FileNotFoundError(kind)

    monkeypatch.setattr(sessions, "_namespace", unknown)
    assert sessions.base_directory() == base
    assert memory not in sessions.search_path()


def test_a_container_with_the_memory_of_its_host_has_none_of_its_own_there(
    memory: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespaces(monkeypatch, pid=2)
    assert sessions.base_directory() == base
    assert memory not in sessions.search_path(), "those of other containers are not ours to end"


@pytest.mark.parametrize("user", [0, 1000])
def test_on_a_host_without_logind_only_root_has_sessions_in_memory(
    user: int, memory: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespaces(monkeypatch)
    monkeypatch.setattr(os, "getuid", lambda: user)
    assert sessions.base_directory() == (base if user else memory)


def test_the_namespaces_of_this_process_are_told() -> None:
    if not Path("/proc/self/ns").exists():
        pytest.skip("a system without namespaces")
    assert os.readlink("/proc/self/ns/ipc") == f"ipc:[{sessions._namespace('ipc')}]"


def test_where_memory_is_full_too(
    memory: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = os.statvfs(memory)
    nearly_full = os.statvfs_result((*found[:4], sessions._ROOM // found.f_frsize - 1, *found[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: nearly_full)
    assert sessions.base_directory() == base


def test_where_there_is_none_too(memory: Path, base: Path) -> None:
    memory.rmdir()
    assert sessions.base_directory() == base


def test_sessions_in_memory_are_found_where_logind_runs_and_where_not(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory in sessions.search_path()
    monkeypatch.setattr(sessions, "_LOGIND", str(tmp_path))
    assert memory in sessions.search_path()


# --- access ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o770])
def test_a_directory_that_others_could_enter_is_refused(base: Path, mode: int) -> None:
    directory = sessions.make()
    directory.chmod(mode)
    with pytest.raises(PermissionError, match=f"it has mode {mode:04o}"):
        sessions.hold(directory)
    directory.chmod(0o700)


def test_a_link_to_a_private_directory_is_refused(base: Path) -> None:
    link = base / "link"
    link.symlink_to(sessions.make())
    with pytest.raises(PermissionError):
        sessions.hold(link)


def test_a_directory_of_somebody_else_is_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = sessions.make()
    monkeypatch.setattr(os, "getuid", lambda: directory.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="belongs to"):
        sessions.hold(directory)


def test_a_session_is_held_once(base: Path) -> None:
    directory = sessions.make()
    held = sessions.hold(directory)
    with pytest.raises(FileExistsError):
        sessions.hold(directory)
    os.close(held)
    assert [path.name for path in directory.iterdir()] == [sessions.LOCK]


def test_the_lock_does_not_pass_to_programs_that_are_started(base: Path) -> None:
    held = sessions.hold(sessions.make())
    assert not os.get_inheritable(held)
    os.close(held)


# --- sweeps ---------------------------------------------------------------------------------------


def test_only_the_directories_of_dead_sessions_are_swept(base: Path) -> None:
    dead, living, starting = sessions.make(), sessions.make(), sessions.make()
    os.close(sessions.hold(dead))
    (dead / "agent").touch()
    held = sessions.hold(living)
    (base / "somebody-elses").mkdir()
    assert sessions.sweep(base) == [dead]
    assert sorted(base.iterdir()) == sorted([living, starting, base / "somebody-elses"])
    os.close(held)


def test_a_new_session_sweeps_before_it_begins(base: Path) -> None:
    dead = sessions.make()
    os.close(sessions.hold(dead))
    fresh = sessions.make()
    assert list(base.iterdir()) == [fresh]


def test_a_removal_that_was_cut_off_is_finished(base: Path) -> None:
    made = [sessions.make() for _ in range(3)]
    empty, full, foreign = (one.rename(f"{one}{sessions.GONE}") for one in made)
    (full / "boards").mkdir()
    (full / "boards" / "one").touch()
    foreign.chmod(0o755)
    assert sessions.sweep(base) == []
    assert (empty.exists(), full.exists(), foreign.exists()) == (False, False, True)


def test_a_directory_that_others_could_enter_is_not_swept(base: Path) -> None:
    dead = sessions.make()
    os.close(sessions.hold(dead))
    dead.chmod(0o755)
    link = base / (sessions.PREFIX + "link")
    link.symlink_to(dead)
    assert sessions.sweep(base) == []
    assert dead.exists()


def test_sweeping_leaves_no_descriptor_open(base: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        os.close(sessions.hold(sessions.make()))
    held = sessions.hold(sessions.make())
    sessions.sweep(base)
    os.close(held)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("step", ["flock", "link", "unlink"])
def test_a_session_that_begins_is_not_swept_however_far_it_is(
    step: str, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, swept = sessions.make(), list[list[Path]]()
    module = fcntl if step == "flock" else os
    real: Callable[..., None] = getattr(module, step)

    def swept_before(*arguments: object) -> None:
        """Another session sweeps in the moment before this one takes that step."""
        monkeypatch.setattr(module, step, real)
        swept.append(sessions.sweep(base))
        real(*arguments)

    monkeypatch.setattr(module, step, swept_before)
    held = sessions.hold(directory)
    assert swept == [[]]
    assert sessions.sweep(base) == []
    os.close(held)
    assert sessions.sweep(base) == [directory]


def test_removing_takes_all_and_what_is_gone_is_no_error(base: Path) -> None:
    directory = sessions.make()
    (directory / "agent").touch()
    sessions.remove(directory)
    sessions.remove(directory)
    assert not directory.exists()


def test_the_address_of_a_node_is_its_name_in_the_directory() -> None:
    assert sessions.address_of(Path("/run/monarch-x"), "5.0") == "ipc:///run/monarch-x/5.0"


# --- finding the sessions of others ---------------------------------------------------------------


def test_what_an_agent_says_is_in_the_lock_file_as_soon_as_that_can_be_found(base: Path) -> None:
    directory = sessions.make()
    held = sessions.hold(directory, b"who and since when")
    assert (directory / sessions.LOCK).read_bytes() == b"who and since when"
    os.close(held)


def test_a_directory_is_held_by_its_agent_or_not_any_more_or_not_yet(base: Path) -> None:
    directory = sessions.make()
    assert sessions.is_held(directory) is None
    held = sessions.hold(directory)
    assert sessions.is_held(directory) is True
    os.close(held)
    assert sessions.is_held(directory) is False


def test_only_directories_by_such_a_name_are_sessions(base: Path) -> None:
    made = {base / f"{sessions.PREFIX}{name}" for name in ("b", "c", "a")}
    for path in made:
        path.mkdir()
    (base / f"{sessions.PREFIX}file").touch()
    (base / "other").mkdir()
    assert set(sessions.find([base, base / "not there"])) == made


def test_they_are_looked_for_wherever_a_program_may_have_put_them(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    places = sessions.search_path()
    assert places[:2] == [base, tmp_path]
    assert Path("/tmp").resolve() in places
    assert len(set(places)) == len(places)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert sessions.search_path()[0] == tmp_path


def test_who_begins_while_it_is_removed_finds_no_place_and_leaves_nothing(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = sessions.make()
    remove_tree = shutil.rmtree
    begun: list[bool] = []

    def begins_meanwhile(path: Path, *, ignore_errors: bool) -> None:
        try:
            (directory / "late").touch()
        except FileNotFoundError:
            begun.append(False)
        else:
            begun.append(True)
        remove_tree(path, ignore_errors=ignore_errors)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", begins_meanwhile)
        sessions.remove(directory)
    assert begun == [False]
    assert list(base.iterdir()) == []
    sessions.remove(directory)  # again is nothing
