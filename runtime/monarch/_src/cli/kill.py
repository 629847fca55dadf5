"""`monarch kill`: end sessions in order, and kill their processes if that takes too long."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from monarch._src.cli import context
from monarch._src.cli.context import has_record
from monarch._src.errors import JobError
from monarch._src.job.contexts import Contexts
from monarch._src.net import session_directory as directories
from monarch._src.session import directories as sessions
from monarch._src.session import reap
from monarch._src.session.directories import (
    Session,
    find_sessions,
    is_ours,
    name_of,
    places,
    short_name,
)


def run(
    bases: Sequence[str] | None, timeout_s: float, names: Sequence[str], *, every: bool,
    orphans: bool,
) -> int:  # fmt: skip
    """End the named sessions; return 0 if all of them are gone, otherwise 1."""
    complaints: list[str] = []
    done: list[str] = []
    if every or orphans:
        chosen = [one for one in find_sessions(bases) if every or one.is_left_behind]
        if not chosen:
            print("no orphaned sessions" if orphans else "you have no sessions on this machine")
    else:
        chosen = _named(names, bases, done, complaints)
    outcome = reap.end(chosen, timeout_s)
    for line in [*done, *outcome.done]:
        print(line)
    for complaint in [*complaints, *outcome.complaints]:
        print(f"monarch kill: {complaint}", file=sys.stderr)
    return 1 if complaints or outcome.complaints else 0


def _named(
    names: Sequence[str], bases: Sequence[str] | None, done: list[str], complaints: list[str]
) -> list[Session]:
    """The sessions of those names; jobs of contexts of those names are ended."""
    contexts = Contexts()
    found = find_sessions(bases)
    chosen: dict[Path, Session] = {}
    for name in names:
        matching = sessions.named(name, found)
        if has_record(contexts, name):
            _kill_context(contexts, name, matching, done, complaints)
        elif len(matching) > 1:
            which = ", ".join(short_name(one) for one in matching)
            complaints.append(f"several sessions begin with {name!r}: {which}")
        elif matching:
            chosen[matching[0].directory] = matching[0]
        else:
            complaints.append(_not_found(name, directories.find(places(bases))))
    return list(chosen.values())


def _kill_context(
    contexts: Contexts,
    name: str,
    matching: Sequence[Session],
    done: list[str],
    complaints: list[str],
) -> None:
    if matching:
        which = ", ".join(one.name for one in matching)
        complaints.append(
            f"{name!r} is a context, and begins the name of a session ({which}): give --context "
            f"{name}, or the directory of the session"
        )
        return
    try:
        done.append(context.kill(contexts, name))
    except (JobError, OSError, ValueError) as error:
        complaints.append(str(error))


def _not_found(name: str, found: Sequence[Path]) -> str:
    wanted = name_of(Path(name))
    for path in found:
        if wanted and name_of(path).startswith(wanted) and not is_ours(path):
            return (
                f"session {name_of(path)} is not yours: {path} belongs to user {_owner(path)}, "
                "or others can enter it"
            )
    return f"there is no session {name!r}; `monarch ps` lists them"


def _owner(directory: Path) -> str:
    try:
        return str(os.lstat(directory).st_uid)
    except OSError:
        return "unknown"
