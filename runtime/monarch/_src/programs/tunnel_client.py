"""The main program of a tunnel: the process by which a client behind a gateway reaches other hosts.

Runs in: a process that the client starts (`net.tunnel.launcher`), on its only thread.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from monarch._src.net.tunnel.client_end import TunnelClient, TunnelOptions
from monarch._src.system.process import raise_fd_limit


def main() -> None:
    """`python -c ... DIRECTORY OPTIONS`: serve until standard input ends."""
    raise_fd_limit()
    os.set_blocking(1, False)
    log_to = Path(sys.argv[1]) / "gateway.log"
    form = "%(asctime)s %(name)s %(levelname)s %(message)s"
    logging.basicConfig(filename=log_to, format=form)

    def tell(line: bytes) -> None:
        with suppress(OSError):  # the pipe is full: the client does not read its news
            os.write(1, line)

    near = TunnelClient(
        Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=TunnelOptions), tell
    )
    try:
        os.write(1, b"\n")  # ready for requests
        near.run(0)
    finally:
        near.close()
