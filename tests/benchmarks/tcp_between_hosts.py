"""What RDMABuffer reaches over TCP between two hosts, against plain sockets that stream.

    python -m tests.benchmarks.tcp_between_hosts [--mib MIB]

The hosts are network namespaces, so the figures are those of the processor: root, iproute2. MiB a
second, the best of fifteen, the ways in turn. `plain N`: N sockets that send without being asked
where, received into memory that is there; not encrypted in either half.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from monarch._src.net.hosts import keys
from tests.fault.test_rdma_of_hosts import CLIENT, PROGRAM, alone
from tests.netns import hosts_up, v4
from tests.workers import worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    size = parser.parse_args().mib << 20
    for encrypted in (False, True):
        os.environ["MONARCH_RDMA_ENCRYPT_TCP"] = str(encrypted)
        print("encrypted" if encrypted else "not encrypted")
        measure(size)


def measure(size: int) -> None:
    found: dict[str, float] = defaultdict(lambda: float("inf"))
    with ExitStack() as stack:
        job = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "job")
        keys.make(Path(job))
        hosts = stack.enter_context(hosts_up(3))
        for number in (1, 2):
            before = hosts.command(number, *alone(f"host{number}"))
            listening = f"tcp://{v4(number)}:26600"
            stack.enter_context(worker("--address", listening, "--keys", job, before=before))
        addresses = [f"tcp://{v4(number)}:26600" for number in (1, 2)]
        client = stack.enter_context(hosts.program(CLIENT, PROGRAM, job, *addresses))
        client.tell(f"rate {size}")
        while "done" not in (line := client.wait_for(lambda _: True)):
            if "what" in line:
                found[line["what"]] = min([found[line["what"]], *line["seconds"]])
    for what, seconds in found.items():
        share = found["plain 1"] / seconds
        print(f"{what:8} {size / (1 << 20) / seconds:8,.0f} MiB/s {share:6.0%} of one plain socket")


if __name__ == "__main__":
    main()
