"""Starts and queries the process that holds a client's tunnel (`programs.tunnel_client`).

Runs in: a client behind a gateway, or the program that ends kept sessions of such a client. Owns:
that process.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from monarch._src.errors import HostUnreachableError
from monarch._src.net.state.addresses import Address
from monarch._src.net.tunnel.client_end import State, TunnelOptions
from monarch._src.net.tunnel.local_socket import DOOR, greet_gateway, try_through
from monarch._src.system.main_programs import TUNNEL_CLIENT, command
from monarch._src.system.process import CHILD_VARIABLE, undebugged

ENDS_S = 5.0


class TunnelLauncher:
    """The process of a tunnel. `fd` is readable when `read_states` has to be called."""

    def __init__(
        self, directory: str | Path, gateway: Address, key_paths: Sequence[str], liveness_s: float
    ) -> None:
        """`key_paths`: ca and private_key, as passed to `attach_to_workers`.

        Raises:
            HostUnreachableError: the process did not start.
        """
        self.gateway = gateway
        self.trouble = ""  # why the link to the gateway is down, if it was up before
        self._directory = Path(directory)
        self._door = self._directory / DOOR
        self._buffered = b""
        ca, private_key = [*key_paths, ""][:2]
        options = TunnelOptions(str(gateway), ca, private_key, liveness_s)
        arguments = [str(directory), msgspec.json.encode(options).decode()]
        self._child = subprocess.Popen(
            undebugged(command(TUNNEL_CLIENT, arguments, collects=False)), cwd="/",
            env={**os.environ, CHILD_VARIABLE: str(directory)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._child.stdout is not None
        self.fd = self._child.stdout.fileno()
        if os.read(self.fd, 1) != b"\n":
            self._child.wait()
            self.close()
            raise HostUnreachableError(
                f"the gateway {gateway}: the process that is to hold the tunnel ended with status "
                f"{self._child.returncode}; its message is on standard error"
            )
        os.set_blocking(self.fd, False)

    def read_states(self) -> bool:
        """Read its messages; False if it has ended."""
        try:
            said = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return True
        if not said:
            self.trouble = f"the process that holds the tunnel (pid {self._child.pid}) has ended"
            return False
        *lines, self._buffered = (self._buffered + said).split(b"\n")
        for line in lines:
            state = msgspec.json.decode(line, type=State)
            self.trouble = "" if state.up else state.why
        return True

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._child.poll() is not None

    def greet(self, timeout_s: float) -> None:
        """Wait for the link to the gateway; see `greet_gateway`."""
        greet_gateway(self._door, self.gateway, timeout_s)

    def reach(self, address: Address, timeout_s: float) -> tuple[Address, Address]:
        """See `try_through`."""
        return try_through(self._door, address, timeout_s)

    def close(self) -> None:
        """End the process, and with it all connections of the tunnel. Idempotent."""
        child = self._child
        if child.stdin is None or child.stdin.closed:
            return
        child.stdin.close()
        try:
            child.wait(ENDS_S)
        except subprocess.TimeoutExpired:  # it may be stopped
            child.kill()
            child.wait()
        assert child.stdout is not None
        child.stdout.close()
        self._door.unlink(missing_ok=True)
