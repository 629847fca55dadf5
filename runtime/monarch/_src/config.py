"""Typed settings: defaults < environment (`MONARCH_<KEY>`) < `configure()`.

There is one value for how long silence is tolerated, `liveness`; every time-out of the runtime is
derived from it unless it is set by itself, and one that could not work (a stop that gives up before
clean-up may end) is refused when it is set. Later settings do not reach meshes that exist.
"""

from __future__ import annotations

import difflib
import os
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Settings:
    """All settings. Durations are seconds; a None one is derived from `liveness`.

    liveness: how long a silent process or host is waited for before it counts as lost.
    cleanup_timeout: how long a stopping proc may drain and clean up before it is killed.
    startup_timeout: how long a new proc may take to say hello.
    preload: modules that every new proc has imported before it exists (`("torch",)`).
    enable_log_forwarding: show what ranks print in the client of a script. Front ends that
        subscribe to output get it regardless.
    """

    liveness: float = 30.0
    cleanup_timeout: float | None = None
    startup_timeout: float | None = None
    preload: tuple[str, ...] = ()
    enable_log_forwarding: bool = True

    @property
    def cleanup_s(self) -> float:
        return self.liveness / 3 if self.cleanup_timeout is None else self.cleanup_timeout

    @property
    def startup_s(self) -> float:
        return 2 * self.liveness if self.startup_timeout is None else self.startup_timeout


_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def _seconds(key: str, value: object) -> float:
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)?\s*", value)
        seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else -1.0
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        seconds = -1.0
    if 0 <= seconds < 1e9:
        return seconds
    raise TypeError(
        f"{key}={value!r}: give a duration, as seconds (30) or as text with a unit ('30s', '500ms')"
    )


def _names(key: str, value: object) -> tuple[str, ...]:
    listed = [n for n in value.split(",") if n.strip()] if isinstance(value, str) else value
    if isinstance(listed, (list, tuple)):
        names = [str(name).strip() for name in listed]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        if all(part.isidentifier() for name in names for part in name.split(".")):
            return tuple(names)
    raise TypeError(f"{key}={value!r}: give names of modules, such as ['torch']")


def _flag(key: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"1", "true", "yes", "on"}:
        return True
    if isinstance(value, str) and value.lower() in {"0", "false", "no", "off"}:
        return False
    raise TypeError(f"{key}={value!r}: give True or False")


_PARSERS: dict[str, Callable[[str, object], Any]] = {
    "liveness": _seconds,
    "cleanup_timeout": _seconds,
    "startup_timeout": _seconds,
    "preload": _names,
    "enable_log_forwarding": _flag,
}

_lock = threading.Lock()
_runtime: dict[str, Any] = {}


def _parsed(values: dict[str, object]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for key, value in values.items():
        if key not in _PARSERS:
            near = difflib.get_close_matches(key, _PARSERS, n=3, cutoff=0.5)
            hint = (
                f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(_PARSERS)}"
            )
            raise ValueError(f"there is no setting {key!r}; {hint}")
        parsed[key] = None if value is None else _PARSERS[key](key, value)
    return parsed


def _checked(settings: Settings) -> Settings:
    if settings.liveness <= 0:
        raise ValueError(f"liveness={settings.liveness}: give more than 0 seconds")
    if settings.startup_s <= 0:
        raise ValueError(f"startup_timeout={settings.startup_s}: give more than 0 seconds")
    return settings


def _environment() -> dict[str, object]:
    found: dict[str, object] = {}
    for key in _PARSERS:
        text = os.environ.get(f"MONARCH_{key.upper()}")
        if text is not None:
            found[key] = text
    return found


def settings() -> Settings:
    """The settings in force now."""
    with _lock:
        merged = {**_parsed(_environment()), **_runtime}
    return _checked(Settings(**{k: v for k, v in merged.items() if v is not None}))


def configure(**values: object) -> dict[str, Any]:
    """Set settings for what is made from now on; returns all settings in force.

    Raises:
        ValueError: an unknown key (the nearest names are listed) or a value that cannot work.
        TypeError: a value of the wrong type.
    """
    parsed = _parsed(values)
    with _lock:
        merged = {**_runtime, **parsed}
        base = {**_parsed(_environment()), **merged}
        _checked(replace(Settings(), **{k: v for k, v in base.items() if v is not None}))
        _runtime.clear()
        _runtime.update(merged)
    return get_global_config()


@contextmanager
def configured(**values: object) -> Generator[dict[str, Any], None, None]:
    """`configure()` for the length of a `with` block."""
    with _lock:
        before = dict(_runtime)
    configure(**values)
    try:
        yield get_global_config()
    finally:
        with _lock:
            _runtime.clear()
            _runtime.update(before)


def get_global_config() -> dict[str, Any]:
    """All settings in force, by name."""
    current = settings()
    return {f.name: getattr(current, f.name) for f in fields(current)}


def get_runtime_config() -> dict[str, Any]:
    """Only what `configure()` has set."""
    with _lock:
        return dict(_runtime)


def clear_runtime_config() -> None:
    """Forget everything that `configure()` has set."""
    with _lock:
        _runtime.clear()
