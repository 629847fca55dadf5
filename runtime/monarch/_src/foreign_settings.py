"""Settings of Monarch for parts that do not exist here: accepted, checked, and without effect.

`configure` keeps them, so that a program that sets and restores them gets its values back.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["duration", "count", "fraction", "flag", "text", "any"]

_KEYS: dict[Kind, str] = {
    "duration": """
        actor_spawn_max_idle channel_net_rx_buffer_full_check_interval channel_reconnect_timeout
        channel_tcp_keepalive_idle forwarder_flush_timeout get_actor_state_max_idle
        get_proc_state_max_idle host_spawn_ready_timeout mesh_admin_config_dump_bridge_timeout
        mesh_admin_pyspy_bridge_timeout mesh_admin_pyspy_client_timeout
        mesh_admin_pyspy_max_profile_duration mesh_admin_pyspy_timeout
        mesh_admin_query_child_timeout mesh_admin_resolve_actor_timeout
        mesh_admin_single_host_timeout mesh_admin_tree_timeout mesh_attach_config_timeout
        mesh_orphan_timeout mesh_proc_spawn_max_idle mesh_terminate_timeout
        message_ack_time_interval otel_metric_export_interval pending_actor_delivery_timeout
        proc_stop_max_idle process_exit_timeout process_memory_metric_interval rdma_qp_init_timeout
        server_heartbeat_interval split_max_buffer_age stop_actor_timeout stop_grace_period
        supervision_watchdog_timeout
    """,
    "count": """
        codec_max_frame_length max_cast_dimension_size max_cast_fanout
        mesh_admin_max_concurrent_resolves mesh_terminate_concurrency message_ack_every_n_messages
        message_ttl_default rdma_max_chunk_size_mb rdma_max_nics_per_buffer rdma_min_stripe_size_kb
        rdma_qps_per_cq rdma_qps_per_peer rdma_runtime_worker_threads rdma_tcp_fallback_parallelism
        read_log_buffer sequencer_max_locked_keys split_max_buffer_size tail_log_lines
        terminated_snapshot_retention tokio_worker_threads
    """,
    "fraction": "message_latency_sampling_rate",
    "flag": """
        enable_dest_actor_reordering_buffer enable_file_capture enable_otel_metrics
        enable_otel_tracing enable_recorder_tracing enable_sqlite_tracing
        enable_unawaited_python_task_traceback force_file_log mesh_bootstrap_enable_pdeathsig
        prefix_with_rank rdma_cq_poller_per_device rdma_host_odp scuba_log_enter_exit
        use_direct_spawn
    """,
    "text": """
        channel_tcp_congestion file_log_level mesh_admin_addr monarch_log_suffix proc_launcher_kind
        pyspy_bin rdma_ibverbs_target rdma_peer_device_affinity
    """,
    "any": "default_encoding default_transport",
}
KINDS: dict[str, Kind] = {key: kind for kind, keys in _KEYS.items() for key in keys.split()}

_INSTEAD = {
    "liveness": """
        channel_reconnect_timeout get_actor_state_max_idle get_proc_state_max_idle
        mesh_orphan_timeout server_heartbeat_interval supervision_watchdog_timeout
    """,
    "cleanup_timeout": """
        mesh_terminate_timeout proc_stop_max_idle process_exit_timeout stop_actor_timeout
        stop_grace_period
    """,
    "startup_timeout": """
        actor_spawn_max_idle host_spawn_ready_timeout mesh_attach_config_timeout
        mesh_proc_spawn_max_idle
    """,
    "message_delivery_timeout": "pending_actor_delivery_timeout",
    "cast_fanout": "max_cast_dimension_size max_cast_fanout",
    "monarch.actor.enable_transport()": "default_transport",
}
_OURS = {key: ours for ours, keys in _INSTEAD.items() for key in keys.split()}


def without_effect(key: str) -> str:
    """The warning for a setting of Monarch, with a substitute if there is one."""
    ours = _OURS.get(key)
    instead = f"; {ours} is what there is of that kind" if ours else ""
    return f"{key} is a setting of Monarch without effect here{instead}"
