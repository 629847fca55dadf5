"""Explains why a value cannot be unpickled: its rank, its class, the reason.

Runs in: the receiving process, and only after unpickling has failed, which it never repeats.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from monarch._src import pickling, wire
from monarch._src.actor.call.target import Target
from monarch._src.actor.errors.traceback_frames import IN_RUNTIME
from monarch._src.failures.endpoint_text import endpoint_text
from monarch._src.failures.report import RankFailure
from monarch._src.pickling.pickler import pickle_in
from monarch._src.wire.frames import Payload, carried

MOST_READ = 10_000  # opcodes of a pickle
# Modules that a pickle names for its own sake, and that are never at fault.
_OF_PICKLING = (
    "_codecs",
    "builtins",
    "cloudpickle",
    "collections",
    "copyreg",
    "functools",
    "types",
)
# Likewise; values of the runtime are rebuilt from classes and functions there.
_OURS = (f"{wire.__name__}.", f"{pickling.__name__}.")


def unreadable_answer_of(
    target: Target, rank: int, endpoint: str, payload: Payload, error: Exception
) -> str:
    """The text of the error for the answer of a rank; `error` is that of unpickling it."""
    unplaced = RankFailure("", rank, {}, "", None, "", None, "endpoint", "", "")
    where = target.describe_as_actor(unplaced, rank).where
    called = endpoint_text(target.class_name, endpoint)
    return unreadable_answer(f"the answer of {called} on {where}", payload, error)


def unreadable_answer(answer: str, payload: Payload, error: Exception) -> str:
    """The text of the error for a received value, like `the answer of Trainer.step`."""
    return f"{unreadable(answer, 'in this process', payload, error)}. {_remedy(error)}"


def unreadable(value: str, where: str, payload: Payload, error: BaseException) -> str:
    """The sentence that says where a value cannot be rebuilt, and why."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{value}{_held(payload, error)} cannot be rebuilt {where}: {said}{_place(error)}"


def _remedy(error: Exception) -> str:
    plain = "return plain data that it consists of: numbers, arrays, a dict (state_dict())"
    if isinstance(error, (ImportError, AttributeError)):
        return f"Make it importable here too, or {plain}"
    return plain[0].upper() + plain[1:]


def _place(error: BaseException) -> str:
    """The place in foreign code that raised the error, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or frames[-1].filename.startswith((IN_RUNTIME, "<frozen ")):
        return ""
    last = frames[-1]
    return f" (in {last.name}, {last.filename}:{last.lineno})"


def _held(payload: Payload, error: BaseException) -> str:
    """`, which holds lab.Thing,`: the class at fault if it can be found; else the first class."""
    found = [
        one
        for one in _named(payload)
        if one[0].split(".")[0] not in _OF_PICKLING and not one[0].startswith(_OURS)
    ]
    if not found:
        return ""
    missing = getattr(error, "name", None) or "\0"
    text = str(error)
    module, name = next(
        (one for one in found if one[0] == missing or one[0].startswith(f"{missing}.")),
        next((one for one in found if f"'{one[1]}'" in text), found[0]),
    )
    return f", which holds {module}.{name},"


def _named(payload: Payload) -> Iterator[tuple[str, str]]:
    """The globals that a pickle refers to, as (module, name), in order."""
    import pickletools  # slow to load, and used here only

    texts: list[str] = []
    memo: list[str] = []  # the memo of the pickle: its texts, and "" for other objects
    body = pickle_in(carried(payload))
    try:
        for at, (code, value, _) in enumerate(pickletools.genops(bytes(body))):
            if at >= MOST_READ:
                return
            if code.name == "MEMOIZE":
                memo.append(texts[-1] if texts else "")
            elif code.name in ("BINGET", "LONG_BINGET"):
                number = int(value or 0)
                texts.append(memo[number] if number < len(memo) else "")
            elif isinstance(value, str):
                texts.append(value)
            elif code.name == "STACK_GLOBAL" and len(texts) > 1:
                yield texts[-2], texts[-1]
                texts.append("")
            else:
                texts.append("")
            del texts[:-2]
    except ValueError:
        return  # it is no pickle, which is the reason
