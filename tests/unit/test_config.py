"""Settings: defaults, then the environment, then `configure`; what cannot work is refused."""

from __future__ import annotations

import math
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._src.config import (
    LADDER,
    Settings,
    _said,  # pyright: ignore[reportPrivateUsage]
    check,
    for_new_procs,
    raw_environment,
    settings,
)
from monarch._src.foreign_settings import KINDS
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
    "attach_timeout": None,
    "message_delivery_timeout": None,
    "detached_limit": 604800.0,
    "preload": "auto",
    "enable_log_forwarding": True,
    "small_write_threshold": 256,
    "rdma_allow_tcp_fallback": True,
    "rdma_encrypt_tcp": True,
    "rdma_disable_ibverbs": False,
    "actor_queue_dispatch": True,
    "fault_injection": False,
    "cast_fanout": 16,
    "spin": 200e-6,
    "telemetry_retention": 0.0,
    "telemetry_rows": 1024,
    "tensor_item": "error",
    "post_mortem_bystanders": False,
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
    assert get_global_config() == DEFAULTS
    assert get_runtime_config() == {}


def test_time_outs_that_are_not_set_follow_from_liveness() -> None:
    def derived() -> tuple[float, float, float]:
        now = settings()
        return now.cleanup_s, now.startup_s, now.delivery_s

    assert derived() == (10.0, 60.0, 30.0)
    configure(liveness=3)
    assert derived() == (1.0, 6.0, 3.0)
    configure(liveness=4, cleanup_timeout=2, startup_timeout="2m", message_delivery_timeout="5s")
    assert derived() == (2.0, 120.0, 5.0)


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
        ("2min", 120.0), ("1h", 3600.0), (30, 30.0), (0.25, 0.25), ("1m30s", 90.0),
        ("1h 30m", 5400.0), (" 2 hours 1 minute 0.5 s ", 7260.5), ("1d", 86400.0), ("7us", 7e-6),
    ],
)  # fmt: skip
def test_durations_are_seconds_or_text_with_a_unit(text: object, seconds: float) -> None:
    assert configure(liveness=text)["liveness"] == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "value",
    ["", "soon", "30 parsecs", "-3s", "1e3", "s", -1, math.nan, math.inf, 1e12, "999999999999h",
     True, [30], b"30", "1m30", "30 1m", "1m,30s", "1M", "1.", ".5s", "9" * 5000 + "!"],
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
        ("none", ()),
        (" auto ", "auto"),
    ],
)
def test_modules_are_a_list_or_text_with_commas(
    value: object, names: tuple[str, ...] | str
) -> None:
    assert configure(preload=value)["preload"] == names


@pytest.mark.parametrize("value", [(), ("torch", "numpy"), "auto"])
def test_new_procs_get_the_modules_of_their_owner(
    monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    configure(preload=value)
    for name, text in for_new_procs().items():
        monkeypatch.setenv(name, text)
    clear_runtime_config()
    assert settings().preload == value


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


@pytest.mark.parametrize(("value", "size"), [(0, 0), (1 << 40, 1 << 40), ("256", 256), (" 7 ", 7)])
def test_sizes_are_whole_numbers_of_bytes(value: object, size: int) -> None:
    assert configure(small_write_threshold=value)["small_write_threshold"] == size


@pytest.mark.parametrize(
    "value", [-1, 1.0, "1.5", "-1", "64 KiB", "", True, [256], "many", "9" * 5000]
)
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"small_write_threshold=.*: give a whole number of bytes"):
        configure(small_write_threshold=value)


def test_a_queue_for_each_actor_is_what_there_always_is() -> None:
    assert configure(actor_queue_dispatch=True)["actor_queue_dispatch"] is True
    with pytest.raises(ValueError, match="actor_queue_dispatch=False: what an actor is sent alway"):
        configure(actor_queue_dispatch=False)
    assert get_global_config()["actor_queue_dispatch"] is True


@pytest.mark.parametrize(
    ("key", "hint"),
    [("livenes", "did you mean liveness?"), ("start_timeout", "did you mean startup_timeout"),
     ("message_ttl", "did you mean message_delivery_timeout?"),
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


# Of each pair the first may not be longer than the second: what is set, and what is said of it.
INVERTED = [
    ({"liveness": "30s", "cleanup_timeout": "31s"},
     "cleanup_timeout=31 s{} is longer than liveness=30 s{}: procs whose owner is gone",
     "Set cleanup_timeout to at most 30 s, or liveness to at least 31 s"),
    ({"cleanup_timeout": "6s", "message_delivery_timeout": "5s"},
     "cleanup_timeout=6 s{} is longer than message_delivery_timeout=5 s{}: liveness, which lies",
     "Set cleanup_timeout to at most 5 s, or message_delivery_timeout to at least 6 s"),
    ({"liveness": "5s", "cleanup_timeout": "6s"},
     "cleanup_timeout=6 s{} is longer than liveness=5 s{}: procs whose owner is gone",
     "Set cleanup_timeout to at most 5 s, or liveness to at least 6 s"),
    ({"liveness": "1m", "message_delivery_timeout": "59s"},
     "liveness=60 s{} is longer than message_delivery_timeout=59 s{}",
     "Set liveness to at most 59 s, or message_delivery_timeout to at least 60 s"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "said", "remedy"), INVERTED, ids=lambda v: str(v)[:40])
def test_time_outs_in_an_order_that_cannot_work_are_refused(
    values: dict[str, str], said: str, remedy: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said.format("", ""))) as refused:
        configure(**values)
    assert str(refused.value).endswith(remedy)
    assert get_runtime_config() == {}


@pytest.mark.parametrize(("values", "said", "remedy"), INVERTED, ids=lambda v: str(v)[:40])
def test_they_are_refused_where_the_environment_sets_them(
    values: dict[str, str], said: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in values.items():
        monkeypatch.setenv(f"MONARCH_{key.upper()}", value)
    with pytest.raises(ValueError, match="is longer than") as refused:
        settings()
    for key in values:
        assert f" s (from MONARCH_{key.upper()})" in str(refused.value)
    assert str(refused.value).endswith(remedy)


MIXED = [found for found in INVERTED if len(found[0]) == 2]


@pytest.mark.parametrize(("values", "said", "remedy"), MIXED, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("first_from_environment", [True, False])
def test_they_are_refused_where_one_comes_from_the_environment(
    values: dict[str, str],
    said: str,
    remedy: str,
    first_from_environment: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = list(values) if first_from_environment else list(reversed(values))
    monkeypatch.setenv(f"MONARCH_{keys[0].upper()}", values[keys[0]])
    with pytest.raises(ValueError, match=rf"\(from MONARCH_{keys[0].upper()}\)") as refused:
        configure(**{keys[1]: values[keys[1]]})
    assert f"MONARCH_{keys[1].upper()}" not in str(refused.value)
    assert str(refused.value).endswith(remedy)
    assert get_runtime_config() == {}


def test_equal_time_outs_are_in_order() -> None:
    configure(liveness=5, cleanup_timeout=5, message_delivery_timeout=5)
    assert settings().cleanup_s == settings().delivery_s == settings().liveness


@contextmanager
def _in_silence() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what has moved
        yield


@given(
    st.fixed_dictionaries(
        {},
        optional={
            key: st.floats(0.001, 100)
            for key in ("liveness", "cleanup_timeout", "message_delivery_timeout")
        },
    )
)
def test_whatever_is_accepted_is_in_order_and_whatever_is_refused_is_not(
    values: dict[str, Any],
) -> None:
    tried = Settings(**values)
    low, high = values.get("cleanup_timeout", 0), values.get("message_delivery_timeout", math.inf)
    in_order = low <= values.get("liveness", min(high, max(low, 30))) <= high
    try:
        with _in_silence(), configured(**values):
            assert in_order
            found = settings()
            assert found.cleanup_s <= found.liveness <= found.delivery_s
            moved = {} if "liveness" in values else {"liveness": found.liveness}
            assert found == msgspec.structs.replace(tried, **moved)
    except ValueError:
        assert not in_order


MOVING = [
    ({"message_delivery_timeout": "5s"}, 5.0,
     "delivery_timeout=5 s moves liveness from 30 s to 5 s, .*cleanup_timeout 1.66667 s, startup_"),
    ({"cleanup_timeout": "1m"}, 60.0,
     ("cleanup_timeout=60 s moves liveness from 30 s to 60 s, .*startup_timeout 120 s, "
      ".*message_delivery_timeout 60 s")),
]  # fmt: skip


@pytest.mark.parametrize(("values", "liveness", "said"), MOVING)
def test_a_time_out_moves_what_is_not_set_and_says_so_once(
    values: dict[str, str], liveness: float, said: str
) -> None:
    _said.clear()
    with pytest.warns(UserWarning, match=said) as warned:
        assert configure(**values)["liveness"] == liveness
    assert warned[0].filename == __file__
    configure(**values)
    assert get_runtime_config().keys() == values.keys()
    clear_runtime_config()
    assert settings().liveness == 30.0


@pytest.mark.parametrize(("values", "liveness", "said"), MOVING)
def test_what_has_moved_is_told_to_new_processes_also_where_the_environment_moves_it(
    values: dict[str, str], liveness: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in values.items():
        monkeypatch.setenv(f"MONARCH_{key.upper()}", value)
    _said.clear()
    assert settings().liveness == liveness
    with pytest.warns(UserWarning, match=said):
        told = for_new_procs()
    assert told["MONARCH_LIVENESS"] == f"{liveness:.9f}s"
    for name, text in told.items():
        monkeypatch.setenv(name, text)
    _said.clear()
    assert for_new_procs() == told


# --- settings of Monarch --------------------------------------------------------------------------

# What Monarch 0.7 has by default, but for those settings that are ours too.
OF_MONARCH: dict[str, object] = {
    "actor_spawn_max_idle": "30s", "channel_net_rx_buffer_full_check_interval": "5s",
    "channel_reconnect_timeout": "1m", "channel_tcp_congestion": "",
    "channel_tcp_keepalive_idle": "1m", "codec_max_frame_length": 10737418240,
    "default_encoding": object(), "default_transport": "tcp",
    "enable_dest_actor_reordering_buffer": True, "enable_file_capture": False,
    "enable_otel_metrics": True, "enable_otel_tracing": True, "enable_recorder_tracing": True,
    "enable_sqlite_tracing": False, "enable_unawaited_python_task_traceback": False,
    "file_log_level": "", "force_file_log": False, "forwarder_flush_timeout": "5s",
    "get_actor_state_max_idle": "30s", "get_proc_state_max_idle": "1m",
    "host_spawn_ready_timeout": "30s", "max_cast_dimension_size": 16, "max_cast_fanout": 16,
    "mesh_admin_addr": "[::]:1729", "mesh_admin_config_dump_bridge_timeout": "5s",
    "mesh_admin_max_concurrent_resolves": 2, "mesh_admin_pyspy_bridge_timeout": "13s",
    "mesh_admin_pyspy_client_timeout": "20s", "mesh_admin_pyspy_max_profile_duration": "5m",
    "mesh_admin_pyspy_timeout": "10s", "mesh_admin_query_child_timeout": "100ms",
    "mesh_admin_resolve_actor_timeout": "200ms", "mesh_admin_single_host_timeout": "3s",
    "mesh_admin_tree_timeout": "10s", "mesh_attach_config_timeout": "1m",
    "mesh_bootstrap_enable_pdeathsig": True, "mesh_orphan_timeout": "1m",
    "mesh_proc_spawn_max_idle": "30s", "mesh_terminate_concurrency": 16,
    "mesh_terminate_timeout": "10s", "message_ack_every_n_messages": 1000,
    "message_ack_time_interval": "500ms", "message_latency_sampling_rate": 0.009999999776482582,
    "message_ttl_default": 64, "monarch_log_suffix": "", "otel_metric_export_interval": "1s",
    "pending_actor_delivery_timeout": "30s", "prefix_with_rank": True, "proc_launcher_kind": "",
    "proc_stop_max_idle": "30s", "process_exit_timeout": "10s",
    "process_memory_metric_interval": "5m", "pyspy_bin": "", "rdma_cq_poller_per_device": True,
    "rdma_host_odp": False, "rdma_ibverbs_target": "", "rdma_max_chunk_size_mb": 64,
    "rdma_max_nics_per_buffer": None, "rdma_min_stripe_size_kb": 512,
    "rdma_peer_device_affinity": "", "rdma_qp_init_timeout": "30s", "rdma_qps_per_cq": 64,
    "rdma_qps_per_peer": 4, "rdma_runtime_worker_threads": 4,
    "rdma_tcp_fallback_parallelism": 1, "read_log_buffer": 100, "scuba_log_enter_exit": False,
    "sequencer_max_locked_keys": 128, "server_heartbeat_interval": "1s",
    "split_max_buffer_age": "50ms", "split_max_buffer_size": 5, "stop_actor_timeout": "10s",
    "stop_grace_period": "10s", "supervision_watchdog_timeout": "2m", "tail_log_lines": 0,
    "terminated_snapshot_retention": 100, "tokio_worker_threads": None, "use_direct_spawn": False,
}  # fmt: skip
ALIKE: dict[str, object] = {
    "cleanup_timeout": "3s", "enable_log_forwarding": False, "message_delivery_timeout": "30s",
    "rdma_allow_tcp_fallback": True, "rdma_disable_ibverbs": False, "small_write_threshold": 256,
}  # fmt: skip


@pytest.mark.parametrize("key", OF_MONARCH)
def test_a_setting_of_monarch_without_effect_is_kept_and_says_so_once(key: str) -> None:
    _said.clear()
    value = OF_MONARCH[key]
    before = settings()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        configure(**{key: value})
        with configured(**{key: value}) as inside:
            assert (key in inside) == (value is not None)
    assert [str(each.message).split(" ")[0] for each in warned] == [key] * (value is not None)
    assert settings() == before
    assert get_runtime_config().keys() == {key}
    assert for_new_procs() == {}
    clear_runtime_config()
    assert key not in get_global_config()


def test_all_settings_of_monarch_are_accepted_together() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = configure(**OF_MONARCH, **ALIKE)
    assert found["mesh_admin_pyspy_max_profile_duration"] == 300.0
    assert found["cleanup_timeout"] == 3.0
    assert KINDS.keys() == OF_MONARCH.keys()


def test_what_there_is_in_place_of_a_setting_of_monarch_is_named() -> None:
    _said.clear()
    with pytest.warns(UserWarning, match="; cleanup_timeout is what there is of that kind") as told:
        configure(stop_actor_timeout="10s")
    assert told[0].filename == __file__
    said = r"enable_transport\(\) is what there is"
    with pytest.warns(UserWarning, match=said) as told, configured(default_transport="tcp"):
        pass
    assert told[0].filename == __file__


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [("stop_actor_timeout", "soon", "give a duration"), ("codec_max_frame_length", -1, "at least"),
     ("prefix_with_rank", "perhaps", "True or False"), ("pyspy_bin", 3, "give text"),
     ("message_latency_sampling_rate", 1.5, "from 0 to 1"), ("tail_log_lines", True, "at least")],
)  # fmt: skip
def test_a_setting_of_monarch_of_the_wrong_type_is_refused(
    key: str, value: object, said: str
) -> None:
    with pytest.raises(TypeError, match=f"^{key}=.*{said}"):
        configure(**{key: value})
    assert get_runtime_config() == {}


def test_every_rung_names_settings_and_is_kept_by_the_defaults() -> None:
    for shorter, longer, why in LADDER:
        assert {shorter, longer} <= get_global_config().keys()
        assert why
    for liveness in (0.001, 1.0, 1e8):
        check(Settings(liveness=liveness))


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
    with pytest.raises(TypeError, match=f"^{name}='{value}'"):
        settings()


def test_blocks_that_overlap_each_take_away_what_they_have_set_and_no_more() -> None:
    configure(startup_timeout=7)
    first, second = configured(liveness=60), configured(cleanup_timeout=5, liveness=40)
    first.__enter__()
    second.__enter__()
    assert (settings().liveness, settings().cleanup_s) == (40.0, 5.0)
    first.__exit__(None, None, None)
    assert (settings().liveness, settings().cleanup_s) == (40.0, 5.0)
    configure(small_write_threshold=300)
    second.__exit__(None, None, None)
    assert get_runtime_config() == {"startup_timeout": 7.0}


def test_a_block_that_is_refused_changes_nothing() -> None:
    configure(liveness=20)
    for wrong in ({"liveness": "soon"}, {"livness": 3}, {"cleanup_timeout": 21}):
        with pytest.raises((TypeError, ValueError)), configured(**wrong):
            pass
    assert get_runtime_config() == {"liveness": 20.0}


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


# --- the processes of a new mesh ------------------------------------------------------------------


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "liveness": st.floats(20, 1e6),
            "cleanup_timeout": st.floats(0, 20),
            "startup_timeout": st.floats(0.001, 1e6),
            "preload": st.lists(st.sampled_from(["torch", "a.b", "numpy"])),
            "enable_log_forwarding": st.booleans(),
            "small_write_threshold": st.integers(0, 1 << 40),
        },
    )
)
def test_what_is_set_here_can_be_told_to_new_processes(values: dict[str, object]) -> None:
    with configured(**values):
        here, told = settings(), for_new_procs()
    assert told.keys() == {f"MONARCH_{key.upper()}" for key in values}
    with pytest.MonkeyPatch.context() as patch:
        for name, text in told.items():
            patch.setenv(name, text)
        there = settings()
    for key in msgspec.structs.asdict(here):
        mine, others = getattr(here, key), getattr(there, key)
        assert others == (pytest.approx(mine, abs=1e-9) if isinstance(mine, float) else mine)


def test_what_is_taken_back_here_is_taken_back_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_LIVENESS", "45s")
    assert for_new_procs() == {"MONARCH_LIVENESS": "45.000000000s"}
    configure(liveness=None)
    assert settings().liveness == 30.0
    assert for_new_procs() == {"MONARCH_LIVENESS": ""}
    monkeypatch.setenv("MONARCH_LIVENESS", "")
    clear_runtime_config()
    assert settings().liveness == 30.0


# --- threads --------------------------------------------------------------------------------------


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


def test_the_raw_environment_is_that_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MT_TEXT", "größe")
    found = raw_environment()
    assert found == dict(os.environb)
    assert found[b"MT_TEXT"].decode() == "größe"
    found[b"MT_TEXT"] = b"changed"
    assert os.environ["MT_TEXT"] == "größe"
