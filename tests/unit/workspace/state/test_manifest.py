"""The changes that make a copy equal to a workspace."""

from __future__ import annotations

from monarch._src.workspace.state.manifest import (
    Changes,
    Entry,
    File,
    Folder,
    Link,
    Manifest,
    changes,
    lacking,
    largest,
)


def file(digest: str = "a", mode: int = 0o644, size: int = 1) -> File:
    return File(digest, mode, (1, size))


TREE: Manifest = {"p": Folder(), "p/x.py": file("x"), "p/y.py": file("y"), "p/l": Link("x.py")}


def test_an_empty_copy_gets_everything() -> None:
    assert changes(TREE, {}, []) == Changes([], ["p", "p/l"], ["p/x.py", "p/y.py"])


def test_an_equal_copy_gets_nothing() -> None:
    assert changes(TREE, dict(TREE), TREE).total == 0


def test_a_file_of_other_contents_or_permissions_is_written() -> None:
    wanted = {**TREE, "p/x.py": file("new"), "p/y.py": file("y", 0o755)}
    assert changes(wanted, TREE, TREE) == Changes([], [], ["p/x.py", "p/y.py"])


def test_a_new_time_alone_changes_nothing() -> None:
    wanted: dict[str, Entry] = {**TREE, "p/x.py": File("x", 0o644, (2, 1))}
    assert changes(wanted, TREE, TREE).total == 0


def test_what_was_changed_on_the_host_is_placed_again() -> None:
    intact = [path for path in TREE if path not in ("p/x.py", "p/l")]
    assert changes(TREE, TREE, intact) == Changes([], ["p/l"], ["p/x.py"])


def test_contents_are_removed_before_their_directory_and_directories_are_made_first() -> None:
    deep: Manifest = {"a": Folder(), "a/b": Folder(), "a/b/c": file()}
    assert changes({}, deep, deep).remove == ["a/b/c", "a/b", "a"]
    assert changes(deep, {}, []).make == ["a", "a/b"]


def test_a_file_in_the_place_of_a_directory_comes_after_its_removal() -> None:
    before: Manifest = {"a": Folder(), "a/b": file("b")}
    assert changes({"a": file("a")}, before, before) == Changes(["a/b", "a"], [], ["a"])


def test_equal_contents_are_asked_for_once() -> None:
    wanted: Manifest = {"one": file("same"), "two": file("same"), "three": file("other")}
    assert lacking(wanted, wanted) == ["same", "other"]


def test_the_largest_parts_are_named_by_two_levels() -> None:
    sizes = {"p/data/a": 5, "p/data/b": 6, "p/x.py": 7, "q": 1}
    assert largest(sizes, 2) == [("p/data", 11), ("p/x.py", 7)]
