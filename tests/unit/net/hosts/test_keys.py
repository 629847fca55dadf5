"""Keys of a job: made whole, read only where nobody else could, and never shown."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import re
import traceback
from pathlib import Path

import pytest

from monarch._src.net.hosts import keys
from monarch._src.net.state.access import Role, fingerprint


@pytest.fixture
def made(tmp_path: Path) -> Path:
    keys.make(tmp_path / "job", "training")
    return tmp_path / "job"


def secret_in(directory: Path, role: Role) -> str:
    return json.loads((directory / keys.key_file(role)).read_text())["secret"]


def test_each_role_has_a_pair_of_its_own_and_its_place_in_the_list(made: Path) -> None:
    loaded = {role: keys.load(made, None, role) for role in Role}
    assert len({found.public for found in loaded.values()}) == len(Role)
    for role, found in loaded.items():
        assert found.role is role
        assert found.allowed.job == "training"
        assert found.allowed.role_of(found.public) is role
        assert found.secret.reveal().decode() == secret_in(made, role)


def test_nobody_else_can_read_any_of_them_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keys.make(tmp_path / "deep" / "job")
    finally:
        os.umask(before)
    directory = tmp_path / "deep" / "job"
    assert directory.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert modes == dict.fromkeys([keys.PUBLIC, *map(keys.key_file, Role)], 0o600)


def test_keys_that_exist_are_never_replaced(made: Path) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    with pytest.raises(FileExistsError, match="keys in use are not replaced"):
        keys.make(made)
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before
    assert [path.name for path in made.parent.iterdir()] == [made.name]


def test_an_empty_directory_is_filled_and_a_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    keys.make(tmp_path / "empty")
    assert keys.load(tmp_path / "empty", None, Role.OWNER).role is Role.OWNER
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="exists already"):
        keys.make(tmp_path / "file")


def test_what_cannot_be_made_whole_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keys.make(tmp_path / "job")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
@pytest.mark.parametrize("name", [keys.PUBLIC, keys.key_file(Role.WORKER)])
def test_a_file_that_others_could_read_or_write_is_refused_with_the_command_that_helps(
    made: Path, name: str, mode: int
) -> None:
    (made / name).chmod(mode)
    with pytest.raises(PermissionError, match=re.escape(f"run `chmod 600 {made / name}`")) as found:
        keys.load(made, None, Role.WORKER)
    assert f"{mode:04o}" in str(found.value)
    (made / name).chmod(0o400)
    keys.load(made, None, Role.WORKER)


def test_a_directory_in_which_others_could_replace_them_is_refused(made: Path) -> None:
    made.chmod(0o770)
    with pytest.raises(PermissionError, match=re.escape(f"run `chmod go-w {made}`")):
        keys.load(made, None, Role.OWNER)


def test_what_is_no_plain_file_is_refused_and_not_waited_for(made: Path) -> None:
    pipe = made / keys.key_file(Role.OWNER)
    pipe.unlink()
    os.mkfifo(pipe, 0o600)
    with pytest.raises(PermissionError, match="is not a plain file"):
        keys.load(made, None, Role.OWNER)
    pipe.unlink()
    pipe.symlink_to(made / keys.key_file(Role.WORKER))
    with pytest.raises(OSError, match=r"symbolic link, .* copy the file here"):
        keys.load(made, None, Role.OWNER)
    pipe.unlink()
    pipe.mkdir(0o700)
    with pytest.raises(PermissionError, match=r"owner\.key is not a plain file; copy the one"):
        keys.load(made, None, Role.OWNER)


def test_files_that_are_missing_are_told_with_the_way_to_make_them(made: Path) -> None:
    (made / keys.key_file(Role.OBSERVER)).unlink()
    with pytest.raises(FileNotFoundError, match=r"observer.key; make keys with `monarch keys make"):
        keys.load(made, None, Role.OBSERVER)
    with pytest.raises(FileNotFoundError, match=re.escape("job.public; make keys with")):
        keys.load(made / "nowhere" / keys.PUBLIC, None, Role.OWNER)


def test_keys_of_another_job_or_role_are_refused(made: Path, tmp_path: Path) -> None:
    keys.make(tmp_path / "other", "serving")
    with pytest.raises(ValueError, match=r"is of job 'serving', and .* of 'training'"):
        keys.load(made, tmp_path / "other" / keys.key_file(Role.OWNER), Role.OWNER)
    public = json.loads((made / keys.PUBLIC).read_text())
    public["observer"], public["owner"] = public["owner"] + public["observer"], []
    (made / keys.PUBLIC).write_text(json.dumps(public))
    with pytest.raises(ValueError, match=r"is a key for owner, and in .* it is listed as obser"):
        keys.load(made, None, Role.OWNER)


def test_a_key_of_another_role_than_is_needed_is_refused_with_the_name_of_the_one_that_is(
    made: Path,
) -> None:
    other = made / keys.key_file(Role.OBSERVER)
    assert keys.load(made, other, Role.OWNER).role is Role.OBSERVER
    why = r"observer\.key is the key of an observer, which may look; .* an owner, .*: owner\.key"
    with pytest.raises(PermissionError, match=why):
        keys.load(made, other, Role.OWNER, only=True)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', "\xff", '{"version": 7, ', "null"]
)
def test_a_damaged_file_is_refused_without_a_word_of_what_it_holds(made: Path, text: str) -> None:
    for name in (keys.PUBLIC, keys.key_file(Role.OWNER)):
        whole = (made / name).read_bytes()
        (made / name).write_text(text, encoding="latin-1")
        with pytest.raises(ValueError, match="is not a file of keys, or is damaged; make new keys"):
            keys.load(made, None, Role.OWNER)
        (made / name).write_bytes(whole)


def test_a_secret_that_does_not_fit_its_public_key_is_refused_and_not_shown(made: Path) -> None:
    path = made / keys.key_file(Role.OWNER)
    content = json.loads(path.read_text())
    for wrong in (secret_in(made, Role.WORKER), "x", "\u00e9" * 40, '"' * 40):
        path.write_text(json.dumps({**content, "secret": wrong}))
        with pytest.raises(ValueError, match="its two keys are not a pair") as caught:
            keys.load(made, None, Role.OWNER)
        told = "".join(traceback.format_exception(caught.value))
        assert len(wrong) == 1 or wrong not in told


def test_a_newer_file_is_told_as_that(made: Path) -> None:
    path = made / keys.PUBLIC
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(ValueError, match="is of version 2; this monarch reads 1"):
        keys.load(made, None, Role.OWNER)


def test_no_way_of_showing_them_shows_a_secret(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = keys.load(made, None, Role.OWNER)
    secret = secret_in(made, Role.OWNER)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("monarch.net").warning("%s %r %s", found, found.secret, vars(found))
    shown = f"{found} {found!r} {found.secret} {vars(found)} {caplog.text} {os.environ}"
    assert secret not in shown
    assert "<secret key>" in shown
    for carry in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="a secret key stays in its process"):
            carry(found.secret)


def test_a_fingerprint_names_a_key_and_tells_nothing_of_it(made: Path) -> None:
    publics = [keys.load(made, None, role).public for role in Role]
    marks = [fingerprint(public) for public in publics]
    assert len(set(marks)) == len(publics)
    assert all(re.fullmatch("[0-9a-f]{16}", mark) for mark in marks)
