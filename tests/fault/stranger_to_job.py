"""A host in the network of a job, without its keys: `stranger_to_job.py GIVEN`.

GIVEN, as JSON: `at`, the ports of workers as `HOST:PORT`; `keys`, those of another job; `bang`, the
path of a directory that appears if its pickle is loaded. Says what each attempt gets, a line each.
"""

from __future__ import annotations

import json
import pickle
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from monarch._src.errors import HostUnreachableError
from monarch.actor import attach_to_workers, shutdown_context
from tests.untrusted_peers import Bomb


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def bytes_from(at: str, said: bytes) -> int:
    """How many bytes are heard in answer to these, until the other side closes or is silent."""
    host, _, port = at.rpartition(":")
    heard = 0
    with socket.create_connection((host, int(port)), timeout=5.0) as stream, suppress(OSError):
        stream.sendall(said)
        stream.shutdown(socket.SHUT_WR)
        while more := stream.recv(65536):
            heard += len(more)
    return heard


def main() -> None:
    given = json.loads(sys.argv[1])
    bomb = pickle.dumps(Bomb(Path(given["bang"])))
    for at in given["at"]:
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)  # ZMTP without keys
        for said in (b"GET / HTTP/1.0\r\n\r\n", bomb, greeting + b"\x00\xff" + bomb):
            say(at=at, heard=bytes_from(at, said))
    for at in given["at"]:
        try:
            attach_to_workers(ca=given["keys"], workers=[f"tcp://{at}"]).initialized.get()
        except HostUnreachableError as error:
            say(at=at, refused=str(error))
        else:
            say(at=at, attached=True)
        shutdown_context(reason="it was refused")
    say(done=True)


if __name__ == "__main__":
    main()
