"""What encryption costs on one TCP stream: our records, TLS, and the kernel's TLS, against none.

    python -m tests.benchmarks.encrypted_streams [--rounds 5] [--mib 256]

Two processes over loopback, with sockets as those of RDMABuffers, the ways in turn: MiB a second,
the median of all rounds, and the seconds of CPU that both processes took together, which other work
on the machine changes less. TLS is version 1.3 as Python's `ssl` has it, with AES-256-GCM.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from monarch._src.net.streams.connection import CHUNK, StreamKeys, proven
from monarch._src.net.streams.sockets import tune

OPEN, OURS, TLS, KERNEL = "open", "ours", "TLS", "kernel's TLS"
ONE, OTHER = os.urandom(32), os.urandom(32)  # keys: the other process is a fork of this
OP_ENABLE_KTLS = 1 << 3  # of OpenSSL; a name in `ssl` from Python 3.12 on
TCP_ULP = 31
Send = Callable[[memoryview], None]
Receive = Callable[[memoryview], None]


def why_no_kernel_tls() -> str:
    """Why the kernel encrypts nothing here; empty if it may."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as made,
    ):
        try:
            made.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
        except OSError as error:
            return error.strerror or str(error)
    return ""


def make_certificate(directory: Path) -> None:
    """One that is signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "benchmark")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (directory / "certificate").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (directory / "key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def ways(
    made: socket.socket, way: str, certificates: Path, *, serves: bool
) -> tuple[Send, Receive]:
    """How to send and receive by that socket."""
    tune(made)
    if way in (OPEN, OURS):
        pair = StreamKeys(ONE, OTHER) if serves else StreamKeys(OTHER, ONE)
        connection = proven(made, pair if way == OURS else None)

        def receive(memory: memoryview) -> None:
            if not connection.receive(memory):
                raise EOFError

        return connection.send, receive
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serves else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if way == KERNEL:
        context.options |= OP_ENABLE_KTLS
    if serves:
        context.load_cert_chain(certificates / "certificate", certificates / "key")
    else:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    stream = context.wrap_socket(made, server_side=serves)

    def send(memory: memoryview) -> None:
        for at in range(0, len(memory), CHUNK):
            stream.sendall(memory[at : at + CHUNK])

    def receive_tls(memory: memoryview) -> None:
        at = 0
        while at < len(memory):
            got = stream.recv_into(memory[at : at + CHUNK])
            if not got:
                raise EOFError
            at += got

    return send, receive_tls


def serve(pipe: Pipe, way: str, size: int, rounds: int, certificates: Path) -> None:
    """Send so many bytes each time that one is received; then say what CPU each time took."""
    data = memoryview(os.urandom(1 << 20) * (size >> 20))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        made, _ = listener.accept()
    send, receive = ways(made, way, certificates, serves=True)
    took: list[float] = []
    for _ in range(rounds):
        receive(memoryview(bytearray(1)))
        began = time.process_time()
        send(data)
        took.append(time.process_time() - began)
    pipe.send(took)
    made.close()


def measured(way: str, size: int, rounds: int, certificates: Path) -> list[tuple[float, float]]:
    """Seconds of each round, and of CPU on both sides; the first is left out."""
    own, other = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(
        target=serve, args=(other, way, size, rounds, certificates)
    )
    server.start()
    made = socket.create_connection(("127.0.0.1", own.recv()))
    send, receive = ways(made, way, certificates, serves=False)
    room = memoryview(bytearray(size))
    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        began, cpu = time.perf_counter(), time.process_time()
        send(memoryview(b"!"))
        receive(room)
        found.append((time.perf_counter() - began, time.process_time() - cpu))
    there: list[float] = own.recv()
    server.join()
    made.close()
    return [(took, cpu + far) for (took, cpu), far in zip(found, there, strict=True)][1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256)
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {OPEN: [], OURS: [], TLS: []}
    if why := why_no_kernel_tls():
        print(f"{KERNEL}: not here ({why})")
    else:
        found[KERNEL] = []
    with tempfile.TemporaryDirectory() as directory:
        make_certificate(Path(directory))
        for _ in range(given.rounds):
            for way, so_far in found.items():
                so_far += measured(way, given.mib << 20, 4, Path(directory))
    for way, times in found.items():
        seconds = statistics.median(took for took, _ in times)
        cpu = statistics.median(spent for _, spent in times)
        print(f"{way:13}{given.mib / seconds:7,.0f} MiB/s  {cpu:.3f} s of CPU")


if __name__ == "__main__":
    main()
