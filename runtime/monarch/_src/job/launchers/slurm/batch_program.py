"""The batch program of a Slurm job: starts a task on each node, and reports when all listen.

Runs in: a process on the first node of the job. The batch script has the text of this module and
runs it by itself, so it imports the standard library alone: that monarch is missing there, or is of
another version, is found and reported by the tasks.
Owns: the srun that runs the tasks, and the client script of a batch job.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from typing import Any

ANSWER = b"monarch-answer "
WORKERS, PROBLEM = "monarch-workers ", "monarch-problem "
LAST = 8  # lines of output in a problem


class Batch:
    """The tasks of the job, and their answers."""

    def __init__(self, order: dict[str, Any], nodes: list[str]) -> None:
        self._order = order
        self._nodes = nodes
        self._workers: dict[int, str] = {}
        self._last: deque[str] = deque(maxlen=LAST)
        self._reported = False
        self._client_status: int | None = None
        self._srun = subprocess.Popen(
            order["srun"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self) -> int:
        """Serve until all tasks have ended; returns the exit status."""
        assert self._srun.stdin is not None
        assert self._srun.stdout is not None
        try:
            self._srun.stdin.write(self._order["input"].encode())
            self._srun.stdin.close()
        except BrokenPipeError:
            pass  # srun has failed, and says why
        for line in self._srun.stdout:
            self._on_line(line)
        status = self._srun.wait()
        if not self._reported:
            self._report_problem({"status": status, "last": list(self._last)})
        return status if self._client_status is None else self._client_status

    def _on_line(self, line: bytes) -> None:
        label, _, said = line.partition(b": ")
        if said.startswith(ANSWER) and label.strip().isdigit():
            self._on_answer(int(label), json.loads(said[len(ANSWER) :]))
            return
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        self._last.append(line.decode(errors="replace").rstrip()[:400])

    def _on_answer(self, task: int, answer: dict[str, Any]) -> None:
        per_node: int = self._order["ntasks_per_node"]
        node = self._nodes[task // per_node]
        if answer.get("why") or ("text" in answer and "why" not in answer):
            self._report_problem({"node": node, "answer": answer})
            self._end_tasks()
        elif "port" in answer:
            others = [one[len("tcp://") :] for one in answer["others"]]
            at = f"{answer['pid']}:{answer['port']}@{','.join(others)}@{answer['site']}"
            self._workers[task] = f"{node}/{at}"
            if len(self._workers) == self._order["tasks"]:
                words = [self._workers[one] for one in sorted(self._workers)]
                self._report(WORKERS + " ".join(words))
                self._start_client()

    def _end_tasks(self) -> None:
        # srun forwards this signal to the tasks, which end in order; on SIGTERM it kills them.
        self._srun.send_signal(signal.SIGUSR1)

    def _report_problem(self, problem: dict[str, Any]) -> None:
        self._report(PROBLEM + json.dumps(problem))

    def _report(self, text: str) -> None:
        if self._reported:  # the first problem is the cause of others
            return
        self._reported = True
        comment = " ".join(filter(None, [self._order["comment"], text]))
        job = os.environ["SLURM_JOB_ID"]
        subprocess.run(["scontrol", "update", f"JobId={job}", f"Comment={comment}"], check=True)

    def _start_client(self) -> None:
        """Run the client script, if there is one; the job ends with it."""
        command = self._order["client"]
        if not command:
            return

        def serve() -> None:
            env = {**os.environ, "MONARCH_BATCH_JOB": self._order["record"]}
            words = [os.path.expanduser(command[0]), *command[1:]]
            ended = subprocess.run(words, stdin=subprocess.DEVNULL, env=env, check=False)
            self._client_status = ended.returncode
            text = f"the client script has ended with status {ended.returncode}\n"
            os.write(1, text.encode())
            self._end_tasks()

        threading.Thread(target=serve, daemon=True).start()


def main() -> int:
    """Read the order from standard input, and carry it out."""
    with open(0, "rb", 0, closefd=False) as lines:
        order = json.loads(lines.readline().decode())
    shown = subprocess.run(["scontrol", "show", "hostnames"], stdout=subprocess.PIPE, check=True)
    return Batch(order, shown.stdout.decode().split()).run()


if __name__ == "__main__":
    sys.exit(main())
