"""Memory of a GPU of this process, moved by a transport that supports only memory of the host.

Bytes pass through the two halves of a pinned chunk: the GPU copies one while the transport has the
other. The driver's own copies from host memory that is not pinned are no faster, and a transport
cannot wait for them.

Runs in: threads that move bytes. Owns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from monarch._src.rdma.cuda.driver import GpuError
from monarch._src.rdma.cuda.gpu import Cut, Half, gpu, rounds
from monarch._src.rdma.transports.base import Piece, Transport, Unavailable, device_of

_Move = Callable[[Sequence[Piece], float], None]


class StagedLink:
    """See `base.Transport`: wraps another one, to support memory of GPUs as well.

    Its calls also raise Unavailable, if a GPU of this process fails.
    """

    name: ClassVar[str] = "staged"
    at_once: ClassVar[bool] = False
    takes_gpus: ClassVar[bool] = True

    def __init__(self, link: Transport) -> None:
        self._link = link
        self.piece = link.piece
        self.streams = link.streams

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None:
        self._each(pieces, deadline, self._link.read_into, self._read)

    def write_from(self, pieces: Sequence[Piece], deadline: float) -> None:
        self._each(pieces, deadline, self._link.write_from, self._write)

    def _each(
        self, pieces: Sequence[Piece], deadline: float, on_host: _Move,
        on_gpu: Callable[[Sequence[Piece], tuple[Half, ...], float], None],
    ) -> None:  # fmt: skip
        by_device: dict[int, list[Piece]] = {}
        host: list[Piece] = []
        for piece in pieces:
            device = device_of(piece)
            (host if device is None else by_device.setdefault(device.ordinal, [])).append(piece)
        if host:
            on_host(host, deadline)
        try:
            for ordinal, theirs in by_device.items():
                with gpu().chunks.taken(ordinal) as halves:
                    on_gpu(theirs, halves, deadline)
        except GpuError as error:
            raise Unavailable(
                f"memory of a GPU of this process could not be copied: {error}"
            ) from error

    def _read(self, pieces: Sequence[Piece], halves: tuple[Half, ...], deadline: float) -> None:
        for n, cuts in enumerate(_cut(pieces, halves)):
            half = halves[n % 2]
            half.stream.wait()
            self._link.read_into(_in_half(pieces, cuts, half), deadline)
            for cut in cuts:
                to = pieces[cut.at].address + cut.offset
                half.stream.copy(to, half.address + cut.place, cut.size)

    def _write(self, pieces: Sequence[Piece], halves: tuple[Half, ...], deadline: float) -> None:
        whole = _cut(pieces, halves)
        for n in range(len(whole) + 1):
            if n < len(whole):  # the transport has sent the previous contents of that half
                half = halves[n % 2]
                for cut in whole[n]:
                    source = pieces[cut.at].address + cut.offset
                    half.stream.copy(half.address + cut.place, source, cut.size)
            if n:
                half = halves[(n - 1) % 2]
                half.stream.wait()
                self._link.write_from(_in_half(pieces, whole[n - 1], half), deadline)

    def close(self, *, now: bool = False) -> None:
        """Nothing to release: the wrapped link is shared."""


def _cut(pieces: Sequence[Piece], halves: tuple[Half, ...]) -> list[list[Cut]]:
    return list(rounds([piece.size for piece in pieces], halves[0].size))


def _in_half(pieces: Sequence[Piece], cuts: Sequence[Cut], half: Half) -> list[Piece]:
    return [
        Piece(
            pieces[cut.at].handle, pieces[cut.at].offset + cut.offset, half.address + cut.place,
            cut.size, half.memory,
        )
        for cut in cuts
    ]  # fmt: skip
