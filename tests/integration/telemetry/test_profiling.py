"""Traces of sessions that run, read by Perfetto's own classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, HostMesh, ProcMesh, attach_to_workers, endpoint, span
from monarch.observe import Profile, profile, query
from tests.integration.commands import monarch
from tests.integration.failing_actors import Faulty
from tests.integration.gates import gate_in
from tests.traces import read
from tests.workers import PATIENCE_S, TRUST_ALL, worker

pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
pytestmark = pytest.mark.slow
Spawn = Callable[..., ProcMesh]


class Worker(Actor):
    """Has a span."""

    @endpoint
    def work(self) -> int:
        with span("load"):
            return 1


def recordings() -> int:
    (count,) = query("SELECT count(*) FROM recordings", PATIENCE_S).rows[0]
    return count


def test_a_profile_has_the_calls_of_its_block_and_keeps_nothing_after_it(
    mesh: ProcMesh, tmp_path: Path
) -> None:
    worker = mesh.spawn("worker", Worker)
    worker.work.call().get()
    path = tmp_path / "run.perfetto"
    with profile(path, timeout=PATIENCE_S) as made:
        worker.work.call().get()
    assert made.missing == ()
    found = read(path.read_bytes())
    (call,) = [one for one in found.all_slices if one.track == "calls"]
    assert call.name == "worker.work"
    handled = [one for one in found.all_slices if one.track == "endpoints of worker"]
    assert {one.process.partition(" ")[0] for one in handled} == {"workers[0]", "workers[1]"}
    assert all(one.last_flows == call.flows for one in handled)
    spans = [one.name for one in found.all_slices if one.track == "spans of MainThread"]
    assert spans == ["load", "load"]
    assert recordings() == 0


def test_a_profile_can_be_used_once_and_exported_after_its_block(
    mesh: ProcMesh, tmp_path: Path
) -> None:
    ready: list[Profile] = []
    made = profile(on_trace_ready=ready.append, timeout=PATIENCE_S)
    with pytest.raises(RuntimeError, match="has not ended"):
        made.export_perfetto_trace()
    with made:
        pass
    assert ready == [made]
    path = made.export_perfetto_trace(tmp_path / "empty.perfetto")
    assert read(path.read_bytes()).of_the_program == []
    with pytest.raises(RuntimeError, match="cannot be reused"), made:
        pass


@pytest.fixture
def host_whose_clock_is_ahead() -> Iterator[HostMesh]:
    """A worker in whose processes the wall clock is 90 s ahead."""
    libraries = list(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        pytest.skip("libfaketime is not installed")
    env = {
        "LD_PRELOAD": str(libraries[0]), "FAKETIME": "+90", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    with worker("--address", "tcp://127.0.0.1:0", "--keys", TRUST_ALL, env=env) as found:
        hosts = attach_to_workers(ca=TRUST_ALL, workers=[found.address])
        yield hosts
        hosts.shutdown().get(timeout=PATIENCE_S)
    for left in Path("/dev/shm").glob(f"*faketime_*_{found.process.pid}"):
        left.unlink()  # the library leaves them to its own command, which is not used here


def test_the_clock_of_another_host_is_corrected(
    mesh: ProcMesh, host_whose_clock_is_ahead: HostMesh, tmp_path: Path
) -> None:
    far = host_whose_clock_is_ahead.spawn_procs({"gpus": 1}, name="far")
    near, there = mesh.spawn("near", Worker), far.spawn("there", Worker)
    with profile(tmp_path / "run.perfetto", timeout=PATIENCE_S) as made:
        near.work.call().get()
        there.work.call().get()
        near.work.call().get()
    assert made.missing == ()
    (offset,) = made.clocks.values()
    assert abs(offset.seconds - 90) <= offset.uncertainty_s
    found = read((tmp_path / "run.perfetto").read_bytes())
    spans = sorted(
        (one.begin_ns, one.process.partition("[")[0])
        for one in found.all_slices
        if one.track == "spans of MainThread"
    )
    assert [name for _, name in spans] == ["workers", "workers", "far", "workers", "workers"]
    (said,) = [name for process, track, name, _ in found.instants if track == "clock"]
    assert said.startswith("corrected: was ")
    assert "ms ahead" in said


def test_programs_for_monarch_profile_by_the_url_of_their_job(
    mesh: ProcMesh, tmp_path: Path
) -> None:
    space: dict[str, Any] = {}
    exec("from monarch.distributed_telemetry.profiler import profile", space)
    worker = mesh.spawn("worker", Worker)
    with space["profile"]("http://127.0.0.1:1", on_trace_ready=lambda _: None) as made:
        worker.work.call().get()
    path = made.export_perfetto_trace(tmp_path / "run.perfetto")
    (call,) = [one for one in read(path.read_bytes()).all_slices if one.track == "calls"]
    assert call.name == "worker.work"
    with pytest.raises(TypeError, match="telemetry_url is text, not 7"):
        space["profile"](7)


def test_another_process_may_profile_a_session(
    mesh: ProcMesh, own_base_directory: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.perfetto"
    with gate_in(tmp_path) as gate:
        faulty = mesh.spawn("faulty", Faulty)
        held = faulty.hold_on.call([1], gate.gate)
        gate.wait_entered()
        status, out, err = monarch(
            "profile", "--in", str(own_base_directory), "--timeout", str(PATIENCE_S), "--time",
            "0.1s", "-o", str(path),
        )  # fmt: skip
        gate.open()
        held.get()
    assert (status, err) == (0, "")
    head, _, call, *_, wrote = out.splitlines()
    assert head.startswith("profile of ")
    assert call.split()[:4] == ["client", "call", "faulty.hold_on", "1"]
    assert wrote.startswith(f"wrote {path} (")
    found = read(path.read_bytes())
    tracks = {(one.process.partition(" ")[0], one.track) for one in found.all_slices}
    assert ("workers[1]", "endpoints of faulty") in tracks, "an endpoint that runs is in the trace"
    assert ("client", "calls") in tracks
    assert recordings() == 0


def test_without_a_session_there_is_nothing_to_profile(tmp_path: Path) -> None:
    status, out, err = monarch("profile", "--in", str(tmp_path), "--time", "0")
    assert (status, out) == (1, "")
    assert err == "monarch profile: there is no running session here (see `monarch ps`)\n"


def test_a_profile_of_a_program_without_a_session_is_empty(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    code = (
        "from monarch.observe import profile\n"
        f"with profile({str(tmp_path / 'x')!r}): pass\n"
        "print('done')\n"
    )
    assert run_python(code) == "done\n"
    assert read((tmp_path / "x").read_bytes()).all_slices == []
