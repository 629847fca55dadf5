"""A client of an SSHJob, told what to do line by line: `client_of_ssh_job.py TOLD HOST ...`.

Says what happens to it as JSON, a line each.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from monarch.actor import Actor, endpoint, shutdown_context
from monarch.job import JobError, SSHJob


class Teller(Actor):
    @endpoint
    def here(self) -> bool:
        return True


class Said(logging.Handler):
    """Warnings of jobs, as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        say(warning=record.getMessage())


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    logging.getLogger("monarch.job").addHandler(Said())
    told = json.loads(sys.argv[1])
    job = SSHJob(sys.argv[2:], env=told["env"], ssh=told["ssh"])
    try:
        procs = job.state(told["path"]).hosts.spawn_procs({"gpus": 1})
    except JobError as error:
        say(error=str(error))
        return
    assert all(procs.spawn("teller", Teller).here.call().get().values())
    with open(told["path"]) as record:
        found = json.load(record)["values"]["_workers"]
    dialled = [one["address"].removeprefix("tcp://").rpartition(":")[0] for one in found]
    say(pids=[one["pid"] for one in found], dialled=dialled)
    for line in sys.stdin:
        if line == "leave\n":
            shutdown_context(reason="told to")
            say(left=True)
            continue
        try:
            job.kill()
        except JobError as error:
            say(error=str(error))
        else:
            say(killed=True)


if __name__ == "__main__":
    main()
