"""A virtual machine with an RDMA device: Debian's kernel under QEMU, and Soft-RoCE inside.

The machine sees this one's files through 9p, and writes to an overlay in its memory; so what runs
in it is the checkout and the interpreter that run here, and nothing here is changed. Opening a file
through 9p is slow, so what Python imports is taken along in memory. QEMU emulates the processor
unless it may use KVM: right for what is true, worthless for how fast.

Runs in: the process of pytest; the guest's first process is a script of busybox. Owns: a folder
with the kernel, an initial RAM disk and pyverbs, made once; QEMU, while a command runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

import pytest

KEPT = Path(sys.prefix) / "rdma-vm"
PACKAGES = ("python3-pyverbs", "busybox-static")
TOOLS = ("qemu-system-x86_64", "apt-get", "apt-cache", "dpkg-deb")
# What the guest loads, in this order; what they depend on comes before them.
MODULES = (
    "virtio_pci", "9pnet_virtio", "9p", "overlay", "crc32_generic", "dummy", "ib_uverbs",
    "rdma_rxe",
)  # fmt: skip
LEFT_OUT = {"test", "idlelib", "ensurepip", "lib2to3", "turtledemo", "tkinter", "site-packages"}
FOLDERS = (
    "arch/x86/crypto", "crypto", "drivers/infiniband/core", "drivers/infiniband/sw/rxe",
    "drivers/net/dummy.ko", "drivers/virtio", "fs/9p", "fs/fscache", "fs/netfs", "fs/overlayfs",
    "lib", "net/9p", "net/ipv4", "net/ipv6",
)  # fmt: skip
INIT = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
share() { mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,$3 $1 $2; }
share root /host ro,cache=loose
mount -t tmpfs -o size=60% memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work root /root
mkdir -p /root/mnt/out
share out /root/mnt/out cache=none
while read number place; do mount --bind /taken/$number /root$place; done < /taken/places
for place in proc sys dev; do mount --move /$place /root/$place; done
mkdir -p /root/dev/shm /root/dev/pts
mount -t tmpfs memory /root/dev/shm
mount -t devpts devpts /root/dev/pts
chroot /root /bin/bash /mnt/out/run > /root/mnt/out/log 2>&1
echo $? > /root/mnt/out/status
reboot -f
"""
IMPORTED = (
    "_hypothesis_globals", "_pytest", "cloudpickle", "hypothesis", "iniconfig", "msgspec", "numpy",
    "packaging", "pluggy", "psutil", "py", "pygments", "pytest", "pyzmq", "sortedcontainers",
    "typing_extensions", "zmq",
)  # fmt: skip
RUN = """ulimit -l unlimited
mkdir /mnt/drivers
cp /etc/libibverbs.d/rxe.driver /mnt/drivers
mount --bind /mnt/drivers /etc/libibverbs.d
echo 1 > /proc/sys/kernel/yama/ptrace_scope
ip link set lo up
ip link add rdma0 mtu 4200 type dummy
ip addr add 192.168.77.1/24 dev rdma0
ip link set rdma0 up
rdma link add rxe0 type rxe netdev rdma0
"""


def why_not() -> str | None:
    """Why there can be no such machine here; None if there can."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"needs Debian with {', '.join(lacking)} (apt-get install qemu-system-x86)"
    if shutil.which("rdma") is None or not Path("/etc/libibverbs.d/rxe.driver").exists():
        return "needs rdma and its driver of Soft-RoCE (apt-get install iproute2 ibverbs-providers)"
    if sys.version_info[:2] != (3, 11):
        return "Debian's pyverbs is for Python 3.11"
    try:
        kernel()
    except (OSError, subprocess.SubprocessError, LookupError) as error:
        return f"Debian's kernel could not be had: {error}"
    return None


@cache
def kernel() -> Path:
    """The folder with `vmlinuz`, `initrd` and `pyverbs`, filled the first time.

    Raises:
        OSError, SubprocessError, LookupError: a package cannot be had, or is not as expected.
    """
    if not (KEPT / "ready").exists():
        shutil.rmtree(KEPT, ignore_errors=True)
        KEPT.mkdir(parents=True)
        packages = _downloaded()
        image = next(p for p in packages if p.name.startswith("linux-image"))
        modules = dict(_of_image(image, (KEPT / "vmlinuz").write_bytes))
        (busybox,) = (p for p in packages if p.name.startswith("busybox"))
        (bindings,) = (p for p in packages if p.name.startswith("python3-pyverbs"))
        for package, folder in ((busybox, "busybox"), (bindings, "pyverbs")):
            subprocess.run(["dpkg-deb", "-x", package, KEPT / folder], check=True)
        with open(KEPT / "initrd", "wb") as archive:
            _initrd(archive, (KEPT / "busybox/bin/busybox").read_bytes(), modules)
        for package in packages:
            package.unlink()
        (KEPT / "ready").touch()
    return KEPT


def pyverbs() -> Path:
    """Where pyverbs can be imported from: Debian's, unless MONARCH_TEST_PYVERBS names another."""
    other = os.environ.get("MONARCH_TEST_PYVERBS")
    return Path(other) if other else kernel() / "pyverbs/usr/lib/python3/dist-packages"


def python() -> list[tuple[Path, Callable[[str], bool]]]:
    """What is imported from elsewhere than the checkout."""
    places = {"stdlib": Path(os.__file__).parent, "packages": Path(pytest.__file__).parent.parent}
    wanted = frozenset(IMPORTED)
    return [
        (places["stdlib"], lambda name: not name.startswith("config-")),
        (places["packages"], lambda name: name.partition(".")[0] in wanted),
        (pyverbs(), lambda name: True),
    ]


def _downloaded() -> list[Path]:
    # `apt-get update` is left to who installed QEMU.
    depends = subprocess.run(
        ["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=True
    ).stdout.split()
    image = next(word for word in depends if word.startswith("linux-image-") and "amd64" in word)
    if image == "linux-image-amd64":
        image = next(w for w in depends if w.startswith("linux-image-") and w[12:13].isdigit())
    done = subprocess.run(
        ["apt-get", "-qq", "download", image, *PACKAGES],
        cwd=KEPT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise OSError(f"apt-get download: {done.stderr.strip()}")
    return list(KEPT.glob("*.deb"))


def _of_image(
    package: Path, found_kernel: Callable[[bytes], object]
) -> Iterator[tuple[str, bytes]]:
    """The modules that may be needed, by name; the kernel is handed over on the way."""
    with (
        subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE
        ) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as archive,
    ):
        for member in archive:
            inside = member.name.partition("/kernel/")[2]
            is_kernel = member.name.startswith("./boot/vmlinuz")
            if not member.isfile() or not (is_kernel or inside.startswith(FOLDERS)):
                continue
            file = archive.extractfile(member)
            data = b"" if file is None else file.read()
            if is_kernel:
                found_kernel(data)
            elif inside.endswith(".ko"):
                yield Path(inside).stem, data


def _initrd(archive: BinaryIO, busybox: bytes, modules: dict[str, bytes]) -> None:
    """What the guest starts with."""
    order: list[str] = []
    for name in MODULES:
        _with_needs(name, modules, order)
    for folder in ("bin", "proc", "sys", "dev", "host", "memory", "root", "modules", "taken"):
        _entry(archive, folder, 0o040755)
    files = {"init": INIT.encode(), "bin/busybox": busybox}
    files |= {f"modules/{name}": modules[name] for name in order}
    for name, data in files.items():
        _entry(archive, name, 0o100755, data)
    _entry(archive, "modules/order", 0o100644, " ".join(order).encode())


def _take_along(archive: BinaryIO, places: Iterable[tuple[Path, Callable[[str], bool]]]) -> None:
    """Folders that the guest finds in its memory, at the places where they are here."""
    listed = ""
    for number, (place, wanted) in enumerate(places):
        listed += f"{number} {place}\n"
        _entry(archive, f"taken/{number}", 0o040755)
        for folder, folders, files in os.walk(place):
            inside = os.path.relpath(folder, place)
            top = inside == "."
            folders[:] = sorted(n for n in folders if n not in LEFT_OUT and (not top or wanted(n)))
            for name in [*folders, *sorted(files)]:
                path = Path(folder, name)
                if top and not wanted(name):
                    continue
                said = f"taken/{number}/{name if top else f'{inside}/{name}'}"
                if path.is_symlink():
                    _entry(archive, said, 0o120777, os.readlink(path).encode())
                elif path.is_dir():
                    _entry(archive, said, 0o040755)
                elif path.is_file():
                    found = path.stat()
                    _entry(archive, said, 0o100755, path.read_bytes(), int(found.st_mtime))
    _entry(archive, "taken/places", 0o100644, listed.encode())


def _with_needs(name: str, modules: dict[str, bytes], order: list[str]) -> None:
    """Add a module after those that it says it depends on."""
    data = (
        modules.get(name) or modules.get(name.replace("_", "-")) or modules[name.replace("-", "_")]
    )
    _, _, said = data.partition(b"\0depends=")
    for need in said.partition(b"\0")[0].decode().split(","):
        known = next((n for n in (need, need.replace("_", "-")) if n in modules), None)
        if known is not None:  # others are part of this kernel
            _with_needs(known, modules, order)
    if name not in order:
        order.append(name)


def _entry(archive: BinaryIO, name: str, mode: int, data: bytes = b"", mtime: int = 0) -> None:
    """One file, as the kernel reads it (cpio, "newc")."""
    path = name.encode() + b"\0"
    number = archive.tell() // 4  # of the inode; no two may have the same
    fields = (number, mode, 0, 0, 1, mtime, len(data), 0, 0, 0, 0, len(path), 0)
    for part in (b"070701" + b"".join(b"%08X" % field for field in fields) + path, data):
        archive.write(part)
        archive.write(bytes(-archive.tell() % 4))


class NoAnswer(Exception):
    """The machine ended before the command did; the text is the last of what it said."""


def run(
    command: Sequence[str], out: Path, environment: dict[str, str],
    taken: Iterable[tuple[Path, Callable[[str], bool]]], *, memory_mib: int = 2560,
    patience_s: float = 600.0,
) -> tuple[int, str]:  # fmt: skip
    """Boot, run the command where the device `rxe0` is, and power off: its status and output.

    `taken`: folders to take along, and which names of each.

    What the command writes to /mnt/out is found in `out`; all else that it writes is lost.

    Raises:
        NoAnswer: it did not come to an end.
    """
    at = kernel()
    shutil.copy(at / "initrd", out / "initrd")
    with open(out / "initrd", "ab") as archive:
        _take_along(archive, taken)
        _entry(archive, "TRAILER!!!", 0)
    exported = "".join(f"export {name}={_quoted(value)}\n" for name, value in environment.items())
    words = " ".join(map(_quoted, command))
    (out / "run").write_text(f"{exported}cd {_quoted(os.getcwd())}\n{RUN}{words}\n")
    machine = subprocess.Popen(
        [
            "qemu-system-x86_64", "-accel", _accelerator(), "-cpu", "max",
            "-smp", "2", "-m", str(memory_mib), "-nodefaults", "-no-reboot",
            "-display", "none", "-serial", "stdio",
            "-kernel", at / "vmlinuz", "-initrd", out / "initrd",
            # On a busy machine the clock of an emulated one may not tick while it is looked at.
            "-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check",
            *_shared("/", "root", "readonly=on,multidevs=remap"), *_shared(str(out), "out"),
            "-device", "virtio-rng-pci",
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    late = threading.Timer(patience_s, machine.kill)
    late.start()
    try:
        said = machine.communicate()[0].decode(errors="replace")
    finally:
        late.cancel()
        machine.kill()
        machine.wait()
        late.join()
        (out / "initrd").unlink()
    try:
        return int((out / "status").read_text()), (out / "log").read_text(errors="replace")
    except (FileNotFoundError, ValueError):
        log = out / "log"
        written = log.read_text(errors="replace") if log.exists() else ""
        raise NoAnswer(f"{said[-2000:]}\n{written[-4000:]}") from None


def _accelerator() -> str:
    """KVM where it works. In a virtual machine a /dev/kvm may be there that leads nowhere."""
    flags = Path("/proc/cpuinfo").read_text()
    if (" vmx " in flags or " svm " in flags) and os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "kvm"
    return "tcg,thread=multi,tb-size=512"


def _shared(path: str, tag: str, options: str = "multidevs=remap") -> list[str]:
    place = f"local,id={tag},path={path},security_model=none,{options}"
    return ["-fsdev", place, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"
