"""Which backend a process group gets, and which GPU each rank. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

CPU, GPU = "gloo", "cpu:gloo,cuda:nccl"


def backend_names(backend: str) -> tuple[str, ...]:
    """The backends of `"gloo"` or `"cpu:gloo,cuda:nccl"`.

    Raises:
        TypeError: it is no text.
        ValueError: it is no such text.
    """
    if not isinstance(backend, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"backend is text such as 'gloo', not {type(backend).__name__}")
    names = tuple(part.rpartition(":")[2].strip().lower() for part in backend.split(","))
    if not all(names):
        raise ValueError(f"backend is text such as 'gloo' or {GPU!r}, not {backend!r}")
    return names


def own_devices(gpus: Sequence[Sequence[str]], hosts: Sequence[str]) -> tuple[int, ...]:
    """A GPU for each rank, by its number in that process; empty unless each has one of its own.

    Args:
        gpus: the identities of the GPUs that each rank sees.
        hosts: where each rank runs.
    """
    found: list[int] = []
    taken: set[tuple[str, str]] = set()
    before: dict[str, int] = {}  # ranks of that host so far
    for seen, host in zip(gpus, hosts, strict=True):
        at = before.get(host, 0)
        before[host] = at + 1
        device = 0 if len(seen) == 1 else at
        if device >= len(seen) or (host, seen[device]) in taken:
            return ()
        taken.add((host, seen[device]))
        found.append(device)
    return tuple(found)


def shared_gpus(name: str, gpus: Sequence[Sequence[str]], backend: str | None) -> str:
    """The text of the error for NCCL on ranks that do not have a GPU each."""
    ranks, seen = len(gpus), len({one for each in gpus for one in each})
    return (
        f"backend {backend!r}: nccl needs a GPU of its own for each rank, and the {ranks} ranks of "
        f"{name} see {seen}; leave backend out, which then takes gloo, or use as many ranks as "
        "there are GPUs"
    )
