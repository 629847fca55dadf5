"""Hosts that are reached by ssh: Debian's sshd, with keys and configuration of the test's own.

Runs in: the process of pytest, as root. An sshd that listens nowhere is started by ssh itself for
each connection (`ProxyCommand`); one of a host that is a network namespace listens there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.leaks import TOKEN_VARIABLE

SSHD = "/usr/sbin/sshd"
SEPARATION = Path("/run/sshd")  # which the program wants, and Debian makes as it starts the service
PATIENCE_S = 60.0


@cache
def why_not() -> str:
    """Why there can be no such hosts here; empty if there can."""
    if shutil.which("ssh") is None or not Path(SSHD).exists():
        return f"hosts that are reached by ssh need ssh and {SSHD} (openssh-server)"
    if os.geteuid() != 0:
        return "an sshd of the test's own needs root"
    return ""


class Reached:
    """What leads to hosts: `ssh` is the program with its options, for `SSHJob`."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        folder.mkdir()
        SEPARATION.mkdir(mode=0o755, exist_ok=True)
        for name in ("user", "host"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
                check=True,
            )
        public = (folder / "host.pub").read_text()
        (folder / "known").write_text(f"{','.join(names)} {public}")
        self._sshd = folder / "sshd_config"
        self._sshd.write_text(
            f"HostKey {folder}/host\n"
            f"AuthorizedKeysFile {folder}/user.pub\n"
            "StrictModes no\n"
            "UsePAM no\n"
            "PermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\n"
            "PidFile none\n"
        )
        self._config = folder / "ssh_config"
        self.ssh = ["ssh", "-F", str(self._config)]

    def configure(self, *lines: str) -> None:
        """Lines of the configuration of ssh, which come before those that are for all hosts."""
        usual = (
            "Host *",
            f"  IdentityFile {self._folder}/user",
            "  IdentitiesOnly yes",
            f"  UserKnownHostsFile {self._folder}/known",
            "  GlobalKnownHostsFile /dev/null",
            "  StrictHostKeyChecking yes",
            "  LogLevel ERROR",
        )
        self._config.write_text("\n".join([*lines, *usual, ""]))

    @property
    def starts_sshd(self) -> str:
        """A command that is a host, at its standard input and output."""
        return f"{SSHD} -i -f {self._sshd}"

    @contextmanager
    def listening(self, before: Sequence[str], address: str) -> Generator[None]:
        """An sshd behind that command, at port 22 of that address."""
        process = subprocess.Popen(
            [*before, SSHD, "-D", "-e", "-f", str(self._sshd), "-o", f"ListenAddress={address}"],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "Server listening on" in line:
                    break
            else:
                raise AssertionError(f"sshd has ended with {process.wait(timeout=PATIENCE_S)}")
            yield
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE_S)
            process.stderr.close()


def here(folder: Path, names: Sequence[str] = ("h1", "h2")) -> Reached:
    """Hosts of these names that are all this one."""
    found = Reached(folder, names)
    found.configure(
        f"Host {' '.join(names)}",
        "  HostName 127.0.0.1",
        f"  HostKeyAlias {names[0]}",
        f"  ProxyCommand {found.starts_sshd}",
    )
    return found


def environment() -> dict[str, str]:
    """What a worker that an sshd starts has to have, so that the test finds what it leaves."""
    wanted = ("XDG_RUNTIME_DIR", TOKEN_VARIABLE, "MONARCH_LIVENESS")
    return {name: os.environ[name] for name in wanted if name in os.environ}
