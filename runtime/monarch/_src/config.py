"""Typed settings: defaults < environment (`MONARCH_<KEY>`) < `configure()`.

A single value, `liveness`, says how long silence is tolerated; every time-out of the runtime is
derived from it unless it is set itself. Time-outs of which one has to end before another are
checked together (`LADDER`), whichever layers they come from. If one of them does not fit the
default of `liveness`, `liveness` moves, and a warning says so. If all of them are set and their
order cannot work, the setting is refused. Later settings do not reach existing meshes; the
processes of a new mesh get the settings that are in force where it is spawned.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from monarch._src.foreign_settings import KINDS, without_effect

SPIN_S = 200e-6
AUTO: Literal["auto"] = "auto"
NONE = "none"
"""Text for an empty list of modules, since an empty variable of the environment sets nothing."""


class Settings(msgspec.Struct, frozen=True):
    """All settings. Durations are seconds; one that is None is derived from `liveness`.

    liveness: how long a process or host may be silent before it counts as lost.
    cleanup_timeout: how long a stopping proc may drain and clean up before it is killed; a third
        of `liveness`.
    startup_timeout: how long a new proc may take to say hello; twice `liveness`.
    attach_timeout: how long `attach_to_workers` waits for a worker that starts late; twice
        `liveness`.
    message_delivery_timeout: how long a proc keeps a call to an actor that it does not know yet,
        because the message that makes the actor is still on its way; `liveness`.
    detached_limit: how long worker hosts keep their part of a kept session while no client is
        attached to it; 0: for ever.
    preload: modules that every new proc has imported before it starts (`("torch",)`), or "auto":
        what the process that spawns it has imported of large libraries.
    enable_log_forwarding: show the output of ranks in the client of a script. Front ends that
        subscribe to output get it regardless.
    small_write_threshold: from this many bytes on, `Buffer.write` keeps a `bytes` instead of
        copying it.
    spin: how long a thread polls before it sleeps, where waits are short. 0: never. In force from
        the first mesh on, also in the process that spawns it.
    cast_fanout: to how many hosts a process sends a cast itself. On a mesh over more hosts, each of
        these relays it to as many others, and so on: a tree.
    fault_injection: whether `monarch.testing` may hold, delay and lose messages of new procs.
    rdma_allow_tcp_fallback: use TCP between two processes for which nothing faster works; otherwise
        such a transfer is an error. Also send large payloads between hosts over TCP connections
        beside the links.
    rdma_encrypt_tcp: encrypt transfers of RDMABuffers over TCP between hosts; payloads always are.
    rdma_disable_ibverbs: never use RDMA network cards.
    telemetry_retention: how long processes keep history for queries; 0: they keep none.
    telemetry_rows: the maximal number of rows of each kind of history in a process.
    tensor_item: what code gets that needs the values of a tensor of a mesh, such as `loss.item()`:
        an `error`, or by `fetch` those of the first rank of the mesh, for which it waits.
    post_mortem_bystanders: whether a post-mortem pauses ranks, too, whose collective has failed
        because another rank has left it. Read by the process that turns post-mortem pauses on.
    actor_queue_dispatch: always True: each actor has a queue of its own for messages.
    """

    liveness: float = 30.0
    cleanup_timeout: float | None = None
    startup_timeout: float | None = None
    attach_timeout: float | None = None
    message_delivery_timeout: float | None = None
    detached_limit: float = 7 * 86400.0
    preload: tuple[str, ...] | Literal["auto"] = AUTO
    enable_log_forwarding: bool = True
    small_write_threshold: int = 256
    rdma_allow_tcp_fallback: bool = True
    rdma_encrypt_tcp: bool = True
    rdma_disable_ibverbs: bool = False
    actor_queue_dispatch: bool = True
    fault_injection: bool = False
    cast_fanout: int = 16
    spin: float = SPIN_S
    telemetry_retention: float = 0.0
    telemetry_rows: int = 1024
    tensor_item: str = "error"
    post_mortem_bystanders: bool = False

    @property
    def cleanup_s(self) -> float:
        return self.liveness / 3 if self.cleanup_timeout is None else self.cleanup_timeout

    @property
    def startup_s(self) -> float:
        return 2 * self.liveness if self.startup_timeout is None else self.startup_timeout

    @property
    def attach_s(self) -> float:
        return 2 * self.liveness if self.attach_timeout is None else self.attach_timeout

    @property
    def delivery_s(self) -> float:
        delivery = self.message_delivery_timeout
        return self.liveness if delivery is None else delivery


# --- values ---------------------------------------------------------------------------------------

_UNITS = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3,
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip


def seconds(key: str, value: object) -> float:
    seconds = -1.0
    if isinstance(value, str):
        seconds = _seconds_of_text(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    if 0 <= seconds < 1e9:
        return seconds
    raise TypeError(
        f"{key}={value!r}: give a duration, as seconds (30) or as text with units "
        "('30s', '500ms', '1m 30s')"
    )


def _seconds_of_text(text: str) -> float:
    """'1h 30m', '500ms' or '30'; -1 if it is not a duration."""
    number = r"(\d+(?:\.\d+)?)"
    if re.fullmatch(rf"\s*{number}\s*", text):
        return float(text)
    part = rf"{number}\s*([a-z]+)\s*"
    if not re.fullmatch(rf"\s*(?:{part})+", text):
        return -1.0
    parts = re.findall(part, text)
    if any(unit not in _UNITS for _, unit in parts):
        return -1.0
    return sum(float(count) * _UNITS[unit] for count, unit in parts)


def preload_names(key: str, value: object) -> tuple[str, ...] | Literal["auto"]:
    """The modules in a list, or in text with commas; or "auto".

    Raises:
        TypeError: it is neither.
    """
    if isinstance(value, str) and value.strip() in (AUTO, NONE):
        return AUTO if value.strip() == AUTO else ()
    listed = [n for n in value.split(",") if n.strip()] if isinstance(value, str) else value
    if isinstance(listed, (list, tuple)):
        names = [str(name).strip() for name in listed]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        if all(part.isidentifier() for name in names for part in name.split(".")):
            return tuple(names)
    raise TypeError(
        f"{key}={value!r}: give names of modules, such as ['torch'], or 'auto', or 'none'"
    )


def _flag(key: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"1", "true", "yes", "on"}:
        return True
    if isinstance(value, str) and value.lower() in {"0", "false", "no", "off"}:
        return False
    raise TypeError(f"{key}={value!r}: give True or False")


def _size(key: str, value: object) -> int:
    if isinstance(value, str) and len(value) < 20 and value.strip().isdecimal():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise TypeError(f"{key}={value!r}: give a whole number of bytes, such as 256")


def _count(key: str, value: object) -> int:
    if isinstance(value, str) and len(value) < 20 and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise TypeError(f"{key}={value!r}: give a whole number of at least 1, such as 32")


def _tensor_item(key: str, value: object) -> str:
    if value in ("error", "fetch"):
        return str(value)
    raise TypeError(f"{key}={value!r}: give 'error' or 'fetch'")


_PARSERS: dict[str, Callable[[str, object], Any]] = {
    "liveness": seconds,
    "cleanup_timeout": seconds,
    "startup_timeout": seconds,
    "attach_timeout": seconds,
    "message_delivery_timeout": seconds,
    "detached_limit": seconds,
    "preload": preload_names,
    "enable_log_forwarding": _flag,
    "small_write_threshold": _size,
    "rdma_allow_tcp_fallback": _flag,
    "rdma_encrypt_tcp": _flag,
    "rdma_disable_ibverbs": _flag,
    "actor_queue_dispatch": _flag,
    "fault_injection": _flag,
    "cast_fanout": _count,
    "spin": seconds,
    "telemetry_retention": seconds,
    "telemetry_rows": _count,
    "tensor_item": _tensor_item,
    "post_mortem_bystanders": _flag,
}


def _fraction(key: str, value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise TypeError(f"{key}={value!r}: give a number from 0 to 1")


def _text_value(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"{key}={value!r}: give text")


def _anything(_key: str, value: object) -> object:
    return value


def _amount(key: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise TypeError(f"{key}={value!r}: give a whole number of at least 0")


_FOREIGN: dict[str, Callable[[str, object], Any]] = {
    "duration": seconds, "count": _amount, "fraction": _fraction, "flag": _flag,
    "text": _text_value, "any": _anything,
}  # fmt: skip


def _parsed(
    values: dict[str, object], called: Callable[[str], str] = lambda key: key
) -> dict[str, Any]:
    """Check and convert values. `called`: returns the name of a key for errors."""
    parsed: dict[str, Any] = {}
    for key, value in values.items():
        if key in KINDS:
            parsed[key] = None if value is None else _FOREIGN[KINDS[key]](called(key), value)
            continue
        if key not in _PARSERS:
            raise ValueError(f"there is no setting {key!r}; {_hint(key)}")
        parsed[key] = None if value is None else _PARSERS[key](called(key), value)
    return parsed


def _hint(key: str) -> str:
    import difflib  # slow to load, and only needed here

    near = difflib.get_close_matches(key, _PARSERS, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(_PARSERS)}"


# --- constraints between them ---------------------------------------------------------------------
# The first may not be longer than the second; the text gives the consequence.
LADDER = (
    (
        "cleanup_timeout",
        "liveness",
        "procs whose owner is gone would outlive the time after which nothing of it may be left",
    ),
    (
        "liveness",
        "message_delivery_timeout",
        "a call would be refused while the process that makes its actor only counts as silent",
    ),
)

_IN_FORCE = {
    "cleanup_timeout": "cleanup_s",
    "startup_timeout": "startup_s",
    "attach_timeout": "attach_s",
    "message_delivery_timeout": "delivery_s",
}


def check(settings: Settings, source: Callable[[str], str] = lambda _: "") -> None:
    """Raise ValueError if these settings cannot work together; `source` says where one was set."""
    for key in ("liveness", "startup_timeout"):
        if _in_force(settings, key) <= 0:
            raise ValueError(f"{key}={getattr(settings, key)}: give more than 0 seconds")
    if not settings.actor_queue_dispatch:
        raise ValueError(
            "actor_queue_dispatch=False: what an actor is sent always waits in a queue of its own; "
            "leave the setting out"
        )
    for shorter, longer, otherwise in LADDER:
        _check_pair(settings, shorter, longer, otherwise, source)


def _check_pair(
    settings: Settings, shorter: str, longer: str, otherwise: str, source: Callable[[str], str]
) -> None:
    low, high = _in_force(settings, shorter), _in_force(settings, longer)
    if low > high:
        raise ValueError(
            f"{shorter}={low:g} s{source(shorter)} is longer than {longer}={high:g} s"
            f"{source(longer)}: {otherwise}. Set {shorter} to at most {high:g} s, or "
            f"{longer} to at least {low:g} s"
        )


def _in_force(settings: Settings, key: str) -> float:
    return getattr(settings, _IN_FORCE.get(key, key))


# --- layers ---------------------------------------------------------------------------------------

_PREFIX = b"MONARCH_"
# The settings of `configure`: outside of all blocks, and in each block that has not ended. Blocks
# of several threads or tasks end in any order, and each removes only its own settings. There is no
# lock, which an interrupt could leave locked: each change is a single operation on a dict.
_layers: dict[object, dict[str, Any]] = {"outside": {}}


# The mapping behind `os.environ`, if available: `os.environ` itself takes 20 times as long.
_behind: Mapping[bytes, bytes] = getattr(os.environ, "_data", None) or os.environb


def raw_environment() -> dict[bytes, bytes]:
    """The present environment of this process."""
    return dict(_behind)


def _configured() -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in list(_layers.values()):
        merged.update(layer)
    return merged


def _environment() -> dict[str, object]:
    """The settings in the environment. An empty variable sets nothing."""
    found: dict[str, object] = {}
    if not any(name.startswith(_PREFIX) for name in raw_environment()):  # the usual case, quickly
        return found
    for key in _PARSERS:
        text = os.environ.get(_variable(key))
        if text:
            found[key] = text
    return found


def from_environment() -> list[str]:
    """The variables of the environment that contain a setting."""
    return [_variable(key) for key in _environment()]


def _variable(key: str) -> str:
    return f"{_PREFIX.decode()}{key.upper()}"


def _merged(runtime: dict[str, Any]) -> Settings:
    environment = _parsed(_environment(), _variable)
    both = {**environment, **runtime}
    given = {k: v for k, v in both.items() if v is not None and k not in KINDS}

    def source(key: str) -> str:
        if key not in given:
            return " (the default)" if key == "liveness" else " (derived from liveness)"
        return "" if key in runtime else f" (from {_variable(key)})"

    merged = Settings(**given)
    if "liveness" not in given:
        merged = _with_liveness_moved(merged, source)
    check(merged, source)
    return merged


def _with_liveness_moved(merged: Settings, source: Callable[[str], str]) -> Settings:
    """Move `liveness`, which is not set, no further from its default than the others require."""
    low, high = merged.cleanup_timeout, merged.message_delivery_timeout
    fits = merged.liveness
    if low is not None and high is not None:
        between = "liveness, which lies between the two, has no place"
        _check_pair(merged, "cleanup_timeout", "message_delivery_timeout", between, source)
    if high:
        fits = min(fits, high)
    if low:
        fits = max(fits, low)
    return merged if fits == merged.liveness else msgspec.structs.replace(merged, liveness=fits)


def _moved(merged: Settings, runtime: Mapping[str, Any]) -> str:
    """The warning if `liveness` was moved from its default; otherwise empty."""
    if merged.liveness == Settings().liveness or runtime.get("liveness") is not None:
        return ""
    if "liveness" not in runtime and "liveness" in _environment():
        return ""
    shorter = merged.liveness < Settings().liveness
    cause = "message_delivery_timeout" if shorter else "cleanup_timeout"
    derived = ", ".join(
        f"{key} {_in_force(merged, key):g} s" for key in _IN_FORCE if getattr(merged, key) is None
    )
    return (
        f"{cause}={_in_force(merged, cause):g} s moves liveness from {Settings().liveness:g} s to "
        f"{merged.liveness:g} s, and what follows from it: {derived}. Set liveness too to say so "
        "yourself"
    )


_said: set[str] = set()


def _warn_once(text: str, stacklevel: int) -> None:
    if text and text not in _said:
        _said.add(text)
        warnings.warn(text, UserWarning, stacklevel=stacklevel + 1)


def settings() -> Settings:
    """The settings in force now.

    Raises:
        TypeError, ValueError: as `configure`, for values in the environment.
    """
    runtime = _configured()
    return _merged(runtime)


def settings_with_sources() -> list[tuple[str, Any, str]]:
    """Each setting in force now with its value and its source.

    The source is `runtime` (`configure`), `environment`, `derived` (from `liveness`) or `default`.

    Raises:
        TypeError, ValueError: as `settings`.
    """
    runtime, environment, found = _configured(), _environment(), settings()
    sources: list[tuple[str, Any, str]] = []
    for key in _PARSERS:
        value = _in_force(found, key) if key in _IN_FORCE else getattr(found, key)
        if runtime.get(key) is not None:
            source = "runtime"
        elif key in environment:
            source = "environment"
        else:
            source = "derived" if key in _IN_FORCE else "default"
        sources.append((key, value, source))
    return sources


def spin_s() -> float:
    """`settings().spin`; almost free if it is not set, since each proc calls this."""
    return settings().spin if b"MONARCH_SPIN" in _behind or any(list(_layers.values())) else SPIN_S


def history_is_set() -> bool:
    """Whether the settings may say that history is kept; almost free, as each proc calls this."""
    return b"MONARCH_TELEMETRY_RETENTION" in _behind or any(list(_layers.values()))


def history_settings() -> tuple[float, int]:
    """How many seconds of history a process keeps, and how many rows of each kind."""
    found = settings()
    return found.telemetry_retention, found.telemetry_rows


def for_new_procs() -> dict[str, str]:
    """The variables that give new processes the settings of this one."""
    runtime = _configured()
    given = {**_parsed(_environment(), _variable), **runtime}
    merged = _merged(runtime)
    moved = _moved(merged, runtime)
    if moved:  # the new processes have it set, so they do not warn again
        _warn_once(moved, 3)
        given["liveness"] = merged.liveness
    return {_variable(key): _as_text(value) for key, value in given.items() if key not in KINDS}


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(value) or NONE  # pyright: ignore[reportUnknownArgumentType]
    return f"{value:.9f}s" if isinstance(value, float) else str(value)


def configure(**values: object) -> dict[str, Any]:
    """Set settings, for objects that are made from now on; returns all settings in force.

    None removes a setting. Settings that are made in a block of `configured` end with the block.
    Settings of Monarch that have no effect here are kept, with one UserWarning for each; another
    UserWarning tells if a time-out moves `liveness`.

    Raises:
        ValueError: an unknown key (the nearest names are listed), a value that cannot work, or
            time-outs in an order that cannot work.
        TypeError: a value of the wrong type.
    """
    parsed = _parsed(values)
    runtime = {**_configured(), **parsed}
    merged = _merged(runtime)
    _warn_of(parsed, _moved(merged, runtime), 2)
    list(_layers.values())[-1].update(parsed)
    return get_global_config()


def _warn_of(parsed: Mapping[str, Any], moved: str, stacklevel: int) -> None:
    for key, value in parsed.items():
        if key in KINDS and value is not None:
            _warn_once(without_effect(key), stacklevel + 1)
    _warn_once(moved, stacklevel + 1)


@contextmanager
def configured(**values: object) -> Generator[dict[str, Any], None, None]:
    """`configure()` for the length of a `with` block, for the whole process.

    Blocks may overlap: if two set the same key, the block that began last counts.
    """
    parsed = _parsed(values)
    runtime = {**_configured(), **parsed}
    merged = _merged(runtime)
    block = object()
    try:
        _layers[block] = parsed
        _warn_of(parsed, _moved(merged, runtime), 3)
        yield get_global_config()
    finally:
        _layers.pop(block, None)


def get_global_config() -> dict[str, Any]:
    """All settings in force, by name, including those of Monarch that have no effect here."""
    runtime = _configured()
    foreign = {k: v for k, v in runtime.items() if k in KINDS and v is not None}
    return {**msgspec.structs.asdict(_merged(runtime)), **foreign}


def get_runtime_config() -> dict[str, Any]:
    """The settings of `configure()` only."""
    return _configured()


def clear_runtime_config() -> None:
    """Remove all settings of `configure()`."""
    for layer in list(_layers.values()):
        layer.clear()
