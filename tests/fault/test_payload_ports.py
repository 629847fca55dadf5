"""Hosts between which a firewall lets links through and nothing else: payloads go by the link.

The hosts are network namespaces, one for a worker and one for the client.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from monarch._src.net.hosts import keys
from tests.netns import hosts_up, v4, why_not
from tests.workers import worker

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.slow]
PORT, SIZE = 26600, 16 << 20
CLIENT = """
import json, sys
from monarch.actor import Actor, attach_to_workers, endpoint
from monarch.observe import payload_counts

class Rank(Actor):
    @endpoint
    def echo(self, data):
        return data, payload_counts().carried

if __name__ == "__main__":
    job, address, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    hosts = attach_to_workers(ca=job, workers=[address])
    rank = hosts.spawn_procs().spawn("rank", Rank)
    data = bytes(range(256)) * (size // 256)
    for _ in range(2):
        got, there = rank.echo.call_one(data).get()
    counts = payload_counts()
    print(json.dumps({"equal": got == data, "served": counts.served_bytes,
                      "beside": counts.bulk_bytes, "here": counts.carried, "there": there}))
    hosts.stop().get()
"""


@pytest.mark.parametrize("ports", ["open", "refused", "dropped"])
def test_what_cannot_go_beside_the_link_goes_by_it_and_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: str
) -> None:
    monkeypatch.setenv("MONARCH_LIVENESS", "9")  # a third of which the first attempt takes
    job = str(tmp_path / "job")
    keys.make(Path(job))
    program = tmp_path / "client.py"
    program.write_text(CLIENT)
    with hosts_up(2) as hosts:
        if ports != "open":
            hosts.open_only(1, PORT, says_no=ports == "refused")
        address = ("--address", f"tcp://*:{PORT}", "--keys", job)
        with worker(*address, before=hosts.command(1)):
            status, out, err = hosts.run(2, str(program), job, f"tcp://{v4(1)}:{PORT}", str(SIZE))
    assert status == 0, err
    said = json.loads(out)
    assert (said["equal"], said["served"]) == (True, 2 * SIZE)
    assert said["beside"] == (2 * SIZE if ports == "open" else 0)
    whys = [why for why in said["here"] if why.startswith("no connection beside the link to")]
    there = [why for why in said["there"] if why.startswith("no connection beside the link to")]
    assert (bool(whys), bool(there)) == ((False, False) if ports == "open" else (True, True))
    assert ("large payloads come by the link" in err) == (ports != "open")
