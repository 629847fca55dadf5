"""Several hosts on one machine: network namespaces, joined by a bridge in one of their own.

Runs in: the process of pytest, as root, on Linux with iproute2 and nftables. Owns: the namespaces,
and what it puts under /etc/netns for them. The network of the machine itself is not touched.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

ETC = Path("/etc/netns")
PATIENCE_S = 90.0


class Hosts:
    """h1, h2, ... at 10.78.0.1, 10.78.0.2, ... and fd78::1, fd78::2, ..."""

    def __init__(self, count: int) -> None:
        self._mark = f"mt{secrets.token_hex(2)}"
        self._count = count
        self._made: list[str] = []

    def up(self) -> None:
        """Make them, with a cable each."""
        switch = self._namespace("sw")
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for number in range(1, self._count + 1):
            host = self._namespace(f"h{number}")
            cable = self._cable(number)
            _ip("-n", switch, "link", "add", cable, "type", "veth", "peer", "eth0", "netns", host)
            _ip("-n", switch, "link", "set", cable, "master", "br0", "up")
            _ip("-n", host, "addr", "add", f"{v4(number)}/24", "dev", "eth0")
            _ip("-n", host, "addr", "add", f"{v6(number)}/64", "dev", "eth0", "nodad")
            for link in ("lo", "eth0"):
                _ip("-n", host, "link", "set", link, "up")
            self.names(number, {f"h{n}": v4(n) for n in range(1, self._count + 1)})
        self._filter("add", "table", "bridge", "t")
        self._filter("add", "chain", "bridge", "t", "f", "{ type filter hook forward priority 0; }")

    def down(self) -> None:
        """Take all of it away."""
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(ETC / name, ignore_errors=True)

    def names(self, number: int, addresses: dict[str, str]) -> None:
        """What names stand for on that host, beside localhost."""
        lines = ["127.0.0.1 localhost", *(f"{at} {name}" for name, at in addresses.items())]
        directory = ETC / f"{self._mark}h{number}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "hosts").write_text("\n".join([*lines, ""]))
        (directory / "resolv.conf").write_text("")

    # --- trouble ----------------------------------------------------------------------------------

    def cut(self, number: int) -> None:
        """Pull the cable of that host."""
        _ip("-n", f"{self._mark}sw", "link", "set", self._cable(number), "down")

    def mend(self, number: int) -> None:
        """Plug it in again."""
        _ip("-n", f"{self._mark}sw", "link", "set", self._cable(number), "up")

    def silence(self, source: int, target: int) -> None:
        """Drop what goes from one host to the other, and not what comes back."""
        self._filter(
            "add", "rule", "bridge", "t", "f", "iifname", self._cable(source), "oifname",
            self._cable(target), "drop",
        )  # fmt: skip

    def end_silence(self) -> None:
        """Drop nothing any more."""
        self._filter("flush", "chain", "bridge", "t", "f")

    def translate(self, number: int, outside: int, inside: int) -> None:
        """Have that host reached at the port `inside` by `outside` alone, as behind a NAT."""
        nft = self.command(number, "nft", "add")
        _run(*nft, "table", "ip", "n")
        _run(*nft, "chain", "ip", "n", "p", "{ type nat hook prerouting priority -100; }")
        _run(
            *nft, "rule", "ip", "n", "p", "tcp", "dport", str(outside),
            "redirect", "to", f":{inside}",
        )  # fmt: skip
        _run(*nft, "chain", "ip", "n", "i", "{ type filter hook input priority 0; }")
        _run(
            *nft, "rule", "ip", "n", "i", "iifname", "eth0", "tcp", "dport", str(inside),
            "ct", "original", "proto-dst", str(inside), "drop",
        )  # fmt: skip

    def open_only(self, number: int, port: int, *, says_no: bool) -> None:
        """Let others connect to that port of that host; the rest `says_no`, or nothing at all."""
        nft = self.command(number, "nft", "add")
        _run(*nft, "table", "inet", "o")
        _run(*nft, "chain", "inet", "o", "i", "{ type filter hook input priority 0; }")
        verdict = ("reject", "with", "tcp", "reset") if says_no else ("drop",)
        _run(
            *nft, "rule", "inet", "o", "i", "iifname", "eth0", "tcp", "flags", "syn / syn,ack",
            "tcp", "dport", "!=", str(port), *verdict,
        )  # fmt: skip

    # --- programs ---------------------------------------------------------------------------------

    def command(self, number: int, *command: str) -> list[str]:
        """What runs that as that host."""
        return ["ip", "netns", "exec", f"{self._mark}h{number}", *command]

    def machine(self, number: int, *command: str) -> list[str]:
        """The command line that runs a command as that host, with a host name of its own: h1, ...

        It knows the names of `names`. Its /sys is that of this machine, which `command` replaces
        and which slurmd reads.
        """
        script = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
        namespace = f"{self._mark}h{number}"
        return [
            "nsenter", f"--net=/run/netns/{namespace}", "unshare", "--uts", "--mount",
            "sh", "-c", script, f"h{number}", str(ETC / namespace / "hosts"), *command,
        ]  # fmt: skip

    @contextmanager
    def program(self, number: int, *arguments: str, named: bool = False) -> Generator[Program]:
        """Run Python with these arguments as that host; the end of its input tells it to end.

        `named`: with a host name of its own, as `machine`.
        """
        enter = self.machine if named else self.command
        found = Program(enter(number, sys.executable, *arguments))
        try:
            yield found
        finally:
            found.end()

    def run(self, number: int, *arguments: str) -> tuple[int, str, str]:
        """Run Python as that host to its end: status, stdout, stderr."""
        done = subprocess.run(
            self.command(number, sys.executable, *arguments),
            env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def _namespace(self, name: str) -> str:
        made = f"{self._mark}{name}"
        _ip("netns", "add", made)
        self._made.insert(0, made)
        return made

    def _cable(self, number: int) -> str:
        return f"{self._mark}v{number}"

    def _filter(self, *arguments: str) -> None:
        _run("ip", "netns", "exec", f"{self._mark}sw", "nft", *arguments)


@contextmanager
def hosts_up(count: int) -> Generator[Hosts]:
    """So many of them, taken away at the end."""
    made = Hosts(count)
    try:
        made.up()
        yield made
    finally:
        made.down()


class Program:
    """A process that says a line of JSON for each thing that happens to it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._seen: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    @property
    def pid(self) -> int:
        """Its process, which `ip netns exec` becomes."""
        return self._process.pid

    def tell(self, line: str) -> None:
        """Write it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait_for(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next line that is what is waited for."""
        while True:
            line = self._lines.get(timeout=PATIENCE_S)
            assert line, f"it has ended; it had said {self._seen[-5:]}"
            self._seen.append(json.loads(line))
            if is_it(self._seen[-1]):
                return self._seen[-1]

    def said(self, key: str) -> list[Any]:
        """All values of that key among the lines that were waited for or passed over."""
        return [line[key] for line in self._seen if key in line]

    def end(self) -> None:
        """Tell it to end, and wait until it has."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.wait(timeout=PATIENCE_S)
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def v4(number: int) -> str:
    """The IPv4 address of that host."""
    return f"10.78.0.{number}"


def v6(number: int) -> str:
    """Its IPv6 address."""
    return f"fd78::{number}"


@cache
def why_not() -> str:
    """Why there can be no such hosts here; empty if there can."""
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if missing:
        return f"hosts of network namespaces need {' and '.join(missing)} (iproute2, nftables)"
    if os.geteuid() != 0:
        return "hosts of network namespaces need root"
    hosts = Hosts(2)
    try:
        hosts.up()
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    finally:
        hosts.down()
    return ""


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
