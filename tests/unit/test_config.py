"""Settings: defaults, then the environment, then `configure`; what cannot work is refused."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.config import Settings, settings
from monarch.config import (
    clear_runtime_config,
    configure,
    configured,
    get_global_config,
    get_runtime_config,
)

DEFAULTS = {
    "liveness": 30.0,
    "cleanup_timeout": None,
    "startup_timeout": None,
    "preload": (),
    "enable_log_forwarding": True,
}


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("MONARCH_")]:
        if name.removeprefix("MONARCH_").lower() in DEFAULTS:
            monkeypatch.delenv(name)
    before = get_runtime_config()
    clear_runtime_config()
    yield
    clear_runtime_config()
    if before:
        configure(**before)


def test_the_defaults_are_those_documented() -> None:
    assert DEFAULTS.items() <= get_global_config().items()
    assert get_runtime_config() == {}


def test_time_outs_that_are_not_set_follow_from_liveness() -> None:
    assert (settings().cleanup_s, settings().startup_s) == (10.0, 60.0)
    configure(liveness=3)
    assert (settings().cleanup_s, settings().startup_s) == (1.0, 6.0)
    configure(cleanup_timeout=7, startup_timeout="2m")
    assert (settings().cleanup_s, settings().startup_s) == (7.0, 120.0)


def test_what_is_configured_comes_before_the_environment_and_that_before_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MONARCH_LIVENESS", "45s")
    assert settings().liveness == 45.0
    configure(liveness=5)
    assert settings().liveness == 5.0
    clear_runtime_config()
    assert settings().liveness == 45.0


def test_only_what_was_configured_is_the_runtime_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_LIVENESS", "45s")
    assert configure(preload="torch, numpy")["preload"] == ("torch", "numpy")
    assert get_runtime_config() == {"preload": ("torch", "numpy")}


def test_none_takes_a_setting_back(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(liveness=5, cleanup_timeout=1)
    configure(cleanup_timeout=None)
    assert settings().cleanup_s == pytest.approx(5 / 3)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0), ("30s", 30.0), (" 30 s ", 30.0), ("500ms", 0.5), ("1.5m", 90.0),
        ("2min", 120.0), ("1h", 3600.0), (30, 30.0), (0.25, 0.25),
    ],
)  # fmt: skip
def test_durations_are_seconds_or_text_with_a_unit(text: object, seconds: float) -> None:
    assert configure(liveness=text)["liveness"] == seconds


@pytest.mark.parametrize(
    "value",
    ["", "soon", "30 parsecs", "-3s", "1e3", "s", -1, math.nan, math.inf, 1e12, "999999999999h",
     True, [30], b"30"],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(TypeError, match=r"liveness=.*: give a duration, as seconds \(30\)"):
        configure(liveness=value)
    assert get_runtime_config() == {}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("torch", ("torch",)),
        ("torch,numpy.random", ("torch", "numpy.random")),
        (" torch , , numpy ", ("torch", "numpy")),
        (["torch"], ("torch",)),
        (("a", "b"), ("a", "b")),
        ("", ()),
        ([], ()),
    ],
)
def test_modules_are_a_list_or_text_with_commas(value: object, names: tuple[str, ...]) -> None:
    assert configure(preload=value)["preload"] == names


@pytest.mark.parametrize("value", ["to rch", "torch.", "1torch", [""], [1], {"torch"}, 5])
def test_what_is_no_module_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"preload=.*: give names of modules"):
        configure(preload=value)


@pytest.mark.parametrize(
    ("value", "flag"),
    [(True, True), ("1", True), ("Yes", True), ("on", True), (False, False), ("0", False),
     ("FALSE", False), ("off", False)],
)  # fmt: skip
def test_flags_may_be_text(value: object, flag: bool) -> None:
    assert configure(enable_log_forwarding=value)["enable_log_forwarding"] is flag


@pytest.mark.parametrize("value", ["maybe", 1, 0, "", [True]])
def test_what_is_no_flag_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"enable_log_forwarding=.*: give True or False"):
        configure(enable_log_forwarding=value)


@pytest.mark.parametrize(
    ("key", "hint"),
    [("livenes", "did you mean liveness?"), ("start_timeout", "did you mean startup_timeout"),
     ("xyz", "there are liveness, cleanup_timeout")],
)  # fmt: skip
def test_an_unknown_setting_is_refused_with_near_names(key: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"there is no setting '{key}'") as refused:
        configure(**{key: 1})
    assert hint in str(refused.value)


@pytest.mark.parametrize("values", [{"liveness": 0}, {"startup_timeout": 0}])
def test_a_time_out_that_could_not_work_is_refused(values: dict[str, object]) -> None:
    (key,) = values
    with pytest.raises(ValueError, match=f"{key}=0.0: give more than 0 seconds"):
        configure(**values)
    assert get_runtime_config() == {}


def test_one_bad_value_leaves_all_as_it_was() -> None:
    configure(liveness=5)
    with pytest.raises(ValueError, match="there is no setting"):
        configure(liveness=6, nonsense=1)
    with pytest.raises(TypeError):
        configure(liveness=6, preload=5)
    assert get_runtime_config() == {"liveness": 5.0}


@pytest.mark.parametrize(
    ("name", "value"), [("MONARCH_LIVENESS", "soon"), ("MONARCH_PRELOAD", "to rch")]
)
def test_what_the_environment_says_is_checked_too(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(TypeError, match=f"{name.removeprefix('MONARCH_').lower()}='{value}'"):
        settings()


def test_a_block_of_settings_ends_with_the_block() -> None:
    configure(liveness=5)
    with configured(liveness=6, cleanup_timeout=1) as inside:
        assert inside["liveness"] == 6.0
        with configured(liveness=7):
            assert settings().liveness == 7.0
            assert settings().cleanup_s == 1.0
        assert settings().liveness == 6.0
    assert get_runtime_config() == {"liveness": 5.0}


def test_a_block_that_fails_ends_too() -> None:
    with pytest.raises(KeyError), configured(liveness=6):
        raise KeyError("inside")
    with pytest.raises(ValueError, match="no setting"), configured(nonsense=6):
        pass
    assert get_runtime_config() == {}


@given(st.dictionaries(st.sampled_from(["liveness", "cleanup_timeout"]), st.floats(0.1, 100)))
def test_what_is_configured_is_what_is_in_force(values: dict[str, float]) -> None:
    with configured(**values):
        assert values.items() <= get_global_config().items()


def test_settings_may_be_read_while_others_configure() -> None:
    stop = threading.Event()

    def configures() -> None:
        while not stop.is_set():
            configure(liveness=3, cleanup_timeout=1)
            clear_runtime_config()

    thread = threading.Thread(target=configures)
    thread.start()
    seen = {(s.liveness, s.cleanup_s) for s in (settings() for _ in range(2000))}
    stop.set()
    thread.join(timeout=60)
    assert seen <= {(30.0, 10.0), (3.0, 1.0)}


def test_settings_are_values() -> None:
    assert Settings() == Settings()
    with pytest.raises(AttributeError):
        Settings().liveness = 1.0  # type: ignore[misc]
