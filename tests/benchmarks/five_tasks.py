"""Five tasks of a notebook's user, on this project, ipyparallel, Dask and Ray, in turn, in one run.

    python -m tests.benchmarks.five_tasks [--ipyparallel PYTHON] [--dask PYTHON] [--ray PYTHON]

Each PYTHON is an interpreter with that peer installed (`ipyparallel`, `distributed`, `ray`). This
file runs under it too, as a script, and imports nothing else there. Four worker processes each.

- sweep: 400 tasks that sleep for 5 ms, from the call to the last result.
- cell: a few lines of source that print and have a value, run on every worker.
- push: 64 MiB of bytes, to be a name or an object on every worker, and read there.
- error: the same exception on every worker, from the call until it is raised; and the number of
  lines that Python's own traceback has then.
- killed: SIGKILL for one worker during a sweep of 80 tasks of 0.1 s, and whether all results come.

The best of three rounds counts for the first three.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

WORKERS = 4
TASKS, TASK_S = 400, 0.005
KILLED_TASKS, KILLED_TASK_S, KILL_AFTER_S = 80, 0.1, 0.7
NBYTES = 64 << 20
ROUNDS = 3
LIMIT_S = 60.0
CELL = "import os\nprint('hello')\nvalue = os.getpid()\n"


def nap(seconds: float) -> float:
    """One task of a sweep. The imports are within, since some peers send the function alone."""
    import time

    time.sleep(seconds)
    return seconds


def fail(_item: int) -> None:
    """Raise the error."""
    raise ValueError("the loss is not a number")


def pid_of_worker(_item: int) -> int:
    """The process of a worker."""
    import os
    import time

    time.sleep(0.05)  # so that each worker gets one
    return os.getpid()


class Monarch:
    """This project."""

    cell = "`%%monarch on workers`"
    push_way = "`workers.push(data=...)`, shared memory"

    def start(self) -> str:
        from importlib.metadata import version

        import monarch.actor
        from monarch.actor import this_host

        monarch.actor.unhandled_fault_hook = lambda failure: None  # type: ignore[assignment]
        self.mesh: Any = this_host().spawn_procs({"gpus": WORKERS}, name="workers")
        self.mesh.initialized.get()
        return version("monarch-jupyter")

    def map(self, task: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        return list(self.mesh.map(task, items, chunk_size=1))

    def run_cell(self) -> None:
        from monarch_jupyter import on

        assert on(self.mesh, CELL + "value") is not None

    def push(self, data: bytes) -> None:
        from monarch_jupyter import on

        self.mesh.push(data=data)
        found = on(self.mesh, "len(data)")
        assert found is not None
        assert found.values() == [NBYTES] * WORKERS

    def fail(self) -> None:
        from monarch.actor import Actor, endpoint

        class Failing(Actor):
            @endpoint
            def fail(self) -> None:
                fail(0)

        failing: Any = self.mesh.spawn("failing", Failing)
        failing.initialized.get()
        self.began = time.perf_counter()
        failing.fail.call().get()

    def stop(self) -> None:
        self.mesh.stop().get()


class IPyParallel:
    """Engines of ipyparallel."""

    cell = "`%%px`"
    push_way = "`view.push({...})`"

    def start(self) -> str:
        import ipyparallel  # pyright: ignore[reportMissingImports]

        self.cluster: Any = ipyparallel.Cluster(n=WORKERS, log_level=40)
        self.client: Any = self.cluster.start_and_connect_sync()
        self.view: Any = self.client[:]
        self.balanced: Any = self.client.load_balanced_view()
        return ipyparallel.__version__

    def map(self, task: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        result: Any = self.balanced.map_async(task, items)
        result.wait(LIMIT_S)
        return list(result.get(0))

    def run_cell(self) -> None:
        self.view.execute(CELL, block=True)
        assert len(self.view["value"]) == WORKERS

    def push(self, data: bytes) -> None:
        self.view.push({"data": data}, block=True)
        self.view.execute("size = len(data)", block=True)
        assert self.view["size"] == [NBYTES] * WORKERS

    def fail(self) -> None:
        self.began = time.perf_counter()
        self.view.apply_sync(fail, 0)

    def stop(self) -> None:
        self.cluster.stop_cluster_sync()


class Dask:
    """Worker processes of Dask distributed."""

    cell = "none; `client.run(function)`"
    push_way = "`client.scatter(data, broadcast=True)`"

    def start(self) -> str:
        import distributed  # pyright: ignore[reportMissingImports]

        self.cluster: Any = distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, dashboard_address=None
        )
        self.client: Any = distributed.Client(self.cluster)
        self.client.wait_for_workers(WORKERS)
        return distributed.__version__

    def map(self, task: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        futures: Any = self.client.map(task, items, pure=False)
        return list(self.client.gather(futures))

    def run_cell(self) -> None:
        assert len(self.client.run(_run_cell)) == WORKERS

    def push(self, data: bytes) -> None:
        future: Any = self.client.scatter(data, broadcast=True, hash=False)
        workers = list(self.client.scheduler_info(n_workers=-1)["workers"])
        again = [self.client.submit(len, future, workers=[w], pure=False) for w in workers]
        assert self.client.gather(again) == [NBYTES] * WORKERS

    def fail(self) -> None:
        self.began = time.perf_counter()
        self.client.run(fail, 0)

    def stop(self) -> None:
        self.client.close()
        self.cluster.close()


class Ray:
    """Tasks and actors of Ray."""

    cell = "none; a method of an actor"
    push_way = "`ray.put(data)`, shared memory"

    def start(self) -> str:
        import ray  # pyright: ignore[reportMissingImports]

        self.ray: Any = ray
        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False,
                 logging_level="ERROR")  # fmt: skip

        @ray.remote(num_cpus=0)
        class Worker:
            def run(self, function: Any, *arguments: Any) -> Any:
                return function(*arguments)

        self.actors: list[Any] = [Worker.remote() for _ in range(WORKERS)]  # pyright: ignore[reportAttributeAccessIssue]
        ray.get([actor.run.remote(len, b"") for actor in self.actors])
        return ray.__version__

    def map(self, task: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        remote: Any = self.ray.remote(task)
        return self.ray.get([remote.remote(item) for item in items], timeout=LIMIT_S)

    def run_cell(self) -> None:
        found = self.ray.get([actor.run.remote(_run_cell) for actor in self.actors])
        assert len(found) == WORKERS

    def push(self, data: bytes) -> None:
        reference: Any = self.ray.put(data)
        found = self.ray.get([actor.run.remote(len, reference) for actor in self.actors])
        assert found == [NBYTES] * WORKERS

    def fail(self) -> None:
        self.began = time.perf_counter()
        self.ray.get([actor.run.remote(fail, 0) for actor in self.actors])

    def stop(self) -> None:
        self.ray.shutdown()


def _run_cell() -> int:
    names: dict[str, Any] = {}
    exec(CELL, names)
    return names["value"]


SIDES: dict[str, Any] = {"here": Monarch, "ipyparallel": IPyParallel, "dask": Dask, "ray": Ray}


def timed(work: Callable[[], object]) -> float:
    """The seconds that one call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def killed(side: Any) -> str:
    """What becomes of a sweep when one worker is killed."""
    victim = side.map(pid_of_worker, list(range(WORKERS)))[-1]
    killer = threading.Timer(KILL_AFTER_S, os.kill, (victim, signal.SIGKILL))
    done: list[str] = []

    def sweep() -> None:
        began = time.perf_counter()
        try:
            found = side.map(nap, [KILLED_TASK_S] * KILLED_TASKS)
            said = f"all {len(found)} results"
        except BaseException as error:
            said = f"{type(error).__name__}"
        done.append(f"{said} after {time.perf_counter() - began:.1f} s")

    thread = threading.Thread(target=sweep, daemon=True)
    killer.start()
    thread.start()
    thread.join(LIMIT_S)
    return done[0] if done else f"nothing within {LIMIT_S:g} s"


def measure(name: str) -> tuple[dict[str, Any], Any]:
    """The five tasks on one side, which is to be stopped afterwards."""
    side = SIDES[name]()
    found: dict[str, Any] = {"cell_way": side.cell, "push_way": side.push_way}
    began = time.perf_counter()
    found["version"] = side.start()
    found["start"] = time.perf_counter() - began
    side.map(nap, [0.0] * WORKERS)
    side.run_cell()
    data = os.urandom(NBYTES)
    found["sweep"] = min(timed(lambda: side.map(nap, [TASK_S] * TASKS)) for _ in range(ROUNDS))
    found["cell"] = min(timed(side.run_cell) for _ in range(ROUNDS))
    found["push"] = min(timed(lambda: side.push(data)) for _ in range(ROUNDS))
    try:
        side.fail()
    except BaseException:
        found["error"] = time.perf_counter() - side.began
        found["error_lines"] = len(traceback.format_exc().splitlines())
    found["killed"] = killed(side)
    return found, side


def ask(name: str, python: str) -> dict[str, Any]:
    """The figures of one side, measured in a process of its own."""
    program = [python, os.path.abspath(__file__), "--side", name]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, timeout=600, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"cell_way"')]
    if not lines:
        raise SystemExit(f"{name} gave no figures (status {done.returncode})")
    return json.loads(lines[-1])


def table(figures: dict[str, dict[str, Any]]) -> str:
    """A table in Markdown, a column for each side."""
    rows = [
        ("version", lambda one: one["version"]),
        ("start of four workers", lambda one: f"{one['start']:.1f} s"),
        (f"sweep: {TASKS} tasks of 5 ms (0.5 s at best)", lambda one: f"{one['sweep']:.2f} s"),
        ("a cell on all workers, by", lambda one: one["cell_way"]),
        ("a cell on all workers", lambda one: f"{one['cell'] * 1e3:.1f} ms"),
        ("push of 64 MiB, by", lambda one: one["push_way"]),
        ("push of 64 MiB", lambda one: f"{one['push'] * 1e3:.0f} ms"),
        ("error on all workers", lambda one: f"{one['error'] * 1e3:.1f} ms"),
        ("lines of its traceback", lambda one: str(one["error_lines"])),
        ("a worker killed in a sweep", lambda one: one["killed"]),
    ]
    lines = [f"| | {' | '.join(figures)} |", "|---" * (len(figures) + 1) + "|"]
    lines += [
        f"| {what} | {' | '.join(text(one) for one in figures.values())} |" for what, text in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", help="measure this side in this process and print JSON")
    for name in SIDES:
        if name != "here":
            parser.add_argument(f"--{name}", metavar="PYTHON")
    arguments = parser.parse_args()
    if arguments.side:
        found, side = measure(arguments.side)
        print(json.dumps(found), flush=True)
        side.stop()
        return
    pythons = {"here": sys.executable, **{n: getattr(arguments, n) for n in SIDES if n != "here"}}
    figures = {name: ask(name, python) for name, python in pythons.items() if python}
    print(table(figures))


if __name__ == "__main__":
    main()
