"""`shell`: an interactive shell on a host, in the terminal of this program.

Runs in: clients. Owns: the proc that the shell runs in, until it has ended. The calling thread
waits for the status; one thread writes the output of the shell, another reads the keyboard.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from monarch._src.actor.ports import Channel, Port, PortReceiver, unheeded
from monarch._src.job.shell.channel import (
    Data,
    Ended,
    HungUp,
    Message,
    Opened,
    Resized,
    Taken,
    WindowedSender,
)
from monarch._src.job.shell.runner import ShellRunner
from monarch._src.job.shell.terminal import LocalTerminal
from monarch._src.job.trait import checked_env
from monarch._src.mesh.meshes import HostMesh


def shell(
    host_mesh: HostMesh,
    *,
    env: Mapping[str, str] | None = None,
    workdir: str | os.PathLike[str] | None = None,
    cmd: Sequence[str] | None = None,
) -> int:
    """Run an interactive shell on one host, in the terminal of this program. Blocks until it ends.

    The shell has a pseudo-terminal of its own on the host. It follows the size of this terminal if
    the main thread calls; keys such as Ctrl-C and Ctrl-Z act on the host. If standard input is a
    pipe or a file, the shell reads that and ends with it.

    Args:
        host_mesh: one host, such as `hosts.slice(hosts=0)`.
        env: variables to add, or to replace. `TERM` is that of this terminal, unless given.
        workdir: the directory to begin in; by default that of the ranks.
        cmd: the program to run in place of the user's shell there (`$SHELL`, or the login shell).

    Returns:
        The exit status of the shell; 128 + N if signal N ended it.

    Raises:
        ValueError: not one host. TypeError: an argument of another type.
        RuntimeError: this program has no standard input and output, as in a notebook.
        ActorError: there is no such directory. SupervisionError: the host was lost.
    """
    count = host_mesh.size()
    if count != 1:
        raise ValueError(f"a shell runs on one host, and the mesh has {count}: slice it")
    if cmd is not None and (isinstance(cmd, str) or not cmd):
        raise TypeError(f"cmd={cmd!r}: give words, as in ['bash', '-l']")
    variables = {"TERM": os.environ.get("TERM", "dumb"), **checked_env(env)}
    terminal = LocalTerminal(sys.stdin, sys.stdout)
    try:
        terminal.watch_size()
        procs = host_mesh.spawn_procs(name="shell")
        try:
            runner: Any = procs.spawn("shell", ShellRunner)
            where = None if workdir is None else os.fspath(workdir)
            words = None if cmd is None else list(cmd)
            return _Conversation(terminal).run(runner, variables, where, words)
        finally:
            procs.stop().get()
    finally:
        terminal.close()


class _Conversation:
    """The client's side: the terminal, and the ports to and from the shell."""

    def __init__(self, terminal: LocalTerminal) -> None:
        self._terminal = terminal
        self._shown, self._receiver = Channel[Message].open()
        self._sender: WindowedSender | None = None

    def run(
        self, runner: Any, env: Mapping[str, str], workdir: str | None, words: list[str] | None
    ) -> int:
        running = runner.run.call_one(self._shown, self._terminal.size, env, workdir, words)
        writer = threading.Thread(
            target=self._show, args=(self._receiver,), name="shows-a-shell", daemon=True
        )
        writer.start()
        try:
            status: int = running.get()
        finally:
            # Also after the death of the rank, which reports no end. Its last output comes before.
            self._shown.send(Ended())
            writer.join()
        return status

    def _show(self, receiver: PortReceiver[Message]) -> None:
        """Write the output of the shell, until the shell has ended. Runs in a thread of its own."""
        back: Port[Message] | None = None
        try:
            while not isinstance(message := receiver.recv().get(), Ended):
                if isinstance(message, Opened):
                    back = unheeded(message.typed)
                    self._begin_typing(back)
                elif isinstance(message, Data):
                    self._write(message.data, back)
                elif isinstance(message, Taken) and self._sender is not None:
                    self._sender.on_taken(message.written)
        finally:
            if self._sender is not None:
                self._sender.close()
                self._terminal.stop_reading()

    def _write(self, data: bytes, back: Port[Message] | None) -> None:
        try:
            self._terminal.write(data)
        except OSError:  # the terminal was closed: so is that of the shell, which ends then
            answer: Message = HungUp()
        else:
            answer = Taken(len(data))
        if back is not None:
            back.send(answer)

    def _begin_typing(self, typed: Port[Message]) -> None:
        sender = self._sender = WindowedSender(typed)
        self._terminal.open(sender.send, lambda size: typed.send(Resized(*size)))
