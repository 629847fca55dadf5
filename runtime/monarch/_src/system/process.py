"""Facilities of the operating system beyond `os`, with fallbacks where they are missing.

Runs in: any process. Imported by the zygote before it forks, since importing `ctypes` is slow.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IOLBF = 1
_PR_SET_PTRACER = 0x59616D61  # "Yama"
# In the environment of an agent, of procs, and of their children: the directory of the session.
CHILD_VARIABLE = "MONARCH_CHILD"
BY_SIGNAL = 128  # the status of a process that signal N has ended is 128 + N, as in shells
# The status of an agent that a SIGTERM has ended.
TERMINATED = BY_SIGNAL + signal.SIGTERM
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_HAS_YAMA = os.path.exists("/proc/sys/kernel/yama")
_libc: ctypes.CDLL | None = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int) -> None:
    """Ask the kernel to SIGKILL this process when its parent ends (Linux).

    If the parent has ended already, this process ends now. On other systems the end of the parent
    shows as end-of-file on an inherited pipe (see `zygote`).
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent ends (Linux), in place of `init`.

    If all processes of a tree do so, the children of an ended process can still be found, even in
    sessions of their own.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def allow_stack_reads_by(process: int) -> None:
    """Let that process and its children read this one's stacks (Linux, if Yama forbids it).

    Yama permits only ancestors; py-spy is a child of the host agent, which is two levels above.
    """
    if _libc is not None and _HAS_YAMA:
        _libc.prctl(_PR_SET_PTRACER, process, 0, 0, 0)


def undebugged(command: list[str]) -> list[str]:
    """A command of ours for execution in a process under a debugger that follows children.

    pydevd (debugpy, PyCharm) inserts itself into every command that begins with a Python, and has
    that process wait for a front end. JupyterLab's never attaches, so it would wait for ever.
    """
    return ["/usr/bin/env", *command] if "pydevd" in sys.modules else command


def line_buffer_c_stdout() -> None:
    """Make C's stdout line-buffered, as on a terminal; in a pipe it would collect whole pages."""
    if _c_stdout is not None and _libc is not None:
        _libc.setvbuf(_c_stdout, None, _IOLBF, 0)


def flush_c_stdout() -> None:
    """Write the buffered part of C's stdout, an incomplete line."""
    if _c_stdout is not None and _libc is not None:
        _libc.fflush(_c_stdout)


def _find_c_stdout() -> ctypes.c_void_p | None:
    if _libc is None:
        return None
    try:
        return ctypes.c_void_p.in_dll(_libc, "stdout")
    except ValueError:
        return None  # the C library has another name for it


_c_stdout = _find_c_stdout()


def pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when that process ends; None if that is impossible."""
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        return opener(pid)
    except OSError:
        return None


def raise_fd_limit() -> int:
    """Raise this process's soft limit of open files to the hard one; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError):
            pass  # some systems have a cap below the reported hard limit
    return soft


def free_descriptors() -> int:
    """How many descriptors this process may still open.

    Linux has the count from 6.2 on; otherwise this takes 1 ms for every thousand open ones.
    """
    listing = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    told = os.stat(listing).st_size if sys.platform == "linux" else 0
    used = told or len(os.listdir(listing)) - 1  # listing the directory opens a descriptor
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - used


def read_entry(path: str) -> str:
    """The contents of an entry in /proc or /sys; takes half the time of a text file.

    Raises:
        OSError: there is no such entry, or it has gone.
    """
    with open(path, "rb", buffering=0) as entry:
        return entry.read().decode(errors="replace")


def rss_bytes(pid: int) -> int:
    """Resident memory of a process in bytes; 0 if it is unknown."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


def cpu_use(pid: int) -> tuple[float | None, bool]:
    """The processor time of a process, and whether it is suspended, by SIGSTOP or Ctrl-Z.

    The time is in seconds, of all its threads; None if it is unknown.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
            # The name of a program, the second field, may have blanks and brackets in it.
            fields = stat.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S, fields[0] == b"T"
    except (OSError, IndexError, ValueError):
        return None, False


def memory_limit() -> int | None:
    """The limit of this process's memory by its resource limits, in bytes; None: no limit."""
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def peak_bytes(usage: resource.struct_rusage) -> int:
    """The peak resident memory of a process, in bytes."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
