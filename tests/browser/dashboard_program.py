"""A program whose session a dashboard shows: `... dashboard_program FOLDER ACTOR`.

Prints one line of JSON: the address of the page; the file of a recording; seconds into it at which
a call ran that has ended since. Then it holds a call on one rank until its standard input ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from monarch.actor import Actor, endpoint, this_host
from monarch.observe import dashboard, query_file, record, record_to
from tests.integration.gates import Gate, gate_in

HOSTILE = "<img src=x onerror=alert(1)>"
PATIENCE_S = 60.0


class Trainer(Actor):
    """Steps, says, waits."""

    @endpoint
    def step(self, text: str) -> None:
        print(text)

    @endpoint
    def wait(self, gate: Gate) -> None:
        gate.pass_through()


def main(folder: Path, name: str) -> None:
    """Run it, with an actor of that name."""
    mesh = this_host().spawn_procs({"hosts": 2, "gpus": 4}, name="workers")
    trainer = mesh.spawn(name, Trainer)
    record()
    path = folder / "run.duckdb"
    (folder / "first").mkdir()
    with gate_in(folder / "first") as gate, record_to(path, 0.1) as sampling:
        trainer.step.call(f"hello {HOSTILE}").get()
        held = trainer.slice(gpus=1).wait.call(gate.gate)
        gate.wait_entered(2)
        # The first of these may have begun before. The slider rounds times, so both neighbours of
        # the sample that is told have to be busy too.
        assert sampling.wait_for(sampling.samples + 4, PATIENCE_S)
        busy = sampling.samples - 1
        gate.open(2)
        held.get()
        assert sampling.wait_for(sampling.samples + 2, PATIENCE_S)
    times = [row[0] for row in query_file(path, "FROM history.samples ORDER BY 1").rows]
    (folder / "second").mkdir()
    with gate_in(folder / "second") as gate:
        held = trainer.slice(hosts=1, gpus=2).wait.call(gate.gate)
        gate.wait_entered()
        told = {
            "page": dashboard().dashboard_url,
            "recording": str(path),
            "busy_s": (times[busy - 1] - times[0]) / 1e6,
        }
        print(json.dumps(told), flush=True)
        sys.stdin.read()
        gate.open()
        held.get()
    mesh.stop().get()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
