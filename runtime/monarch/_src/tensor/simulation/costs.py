"""What operations cost on a machine: bounds from its data sheet. No I/O, no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """The figures of each rank's device. The defaults are those of NVIDIA's H100 SXM data sheet.

    An operation takes as long as its arithmetic, or as its bytes, whichever is longer. So the times
    are lower bounds: real ones depend on kernels, shapes and the network.
    """

    flops_per_s: float = 989e12
    """Floating-point operations; of dense matrices in bfloat16."""
    memory_bytes_per_s: float = 3.35e12
    link_bytes_per_s: float = 450e9
    """Between two ranks, in each direction; of NVLink. A network between hosts has less."""
    least_s: float = 2e-6
    """The shortest time of an operation: that of a kernel that does nothing."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "least_s" else 1e-300
            if not isinstance(value, (int, float)) or not least <= value < float("inf"):
                raise ValueError(f"Machine({name}={value!r}): give a finite number above 0")

    def operation_s(self, flops: int, nbytes: int) -> float:
        """The time of an operation that reads and writes that many bytes in all."""
        return max(flops / self.flops_per_s, nbytes / self.memory_bytes_per_s, self.least_s)

    def transfer_s(self, nbytes: float) -> float:
        """The time in which a rank sends that many bytes."""
        return max(nbytes / self.link_bytes_per_s, self.least_s)


def sent_bytes(nbytes: int, ranks: int, reduction: str, scatter: bool) -> float:
    """What each rank sends in a reduce of a tensor of `nbytes`, by the algorithms of a ring."""
    others = ranks - 1
    if reduction == "stack":
        return nbytes * others / ranks if scatter else float(nbytes * others)
    return (1 if scatter else 2) * nbytes * others / ranks
