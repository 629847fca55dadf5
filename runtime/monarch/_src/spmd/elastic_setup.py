"""The elastic environment on all ranks of a mesh, from the process that drives it."""

from __future__ import annotations

from typing import Any

from monarch._src.actor.background import returns_future
from monarch._src.errors import ActorError
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.spmd.actor import ElasticEnvironment
from monarch._src.spmd.process_group import first_of, is_on_one_host, watched_members
from monarch._src.spmd.rendezvous import address_family


def setup_torch_elastic_env(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: object = None,
) -> None:
    """Set the environment variables of torch elastic on every rank, as torchrun does.

    Code of the ranks can then call `torch.distributed.init_process_group()`. Rank 0 serves the
    store, on a socket that is bound here, before any rank needs it. The last dim of the mesh counts
    the ranks of a host (`LOCAL_RANK`). From here on the ranks are watched: when one dies, the
    collectives of the others end, see `CollectiveError`.

    Args:
        proc_mesh: a mesh or a slice of one; ranks are numbered by their place in it.
        master_addr: the host name or address of rank 0 that the others dial; None finds one.
        master_port: the port that rank 0 listens at; None takes one that is free.
        use_ipaddr: `"IPv4"` or `"IPv6"` for an address of that kind in place of a host name.

    Raises:
        ModuleNotFoundError: a rank has no torch.
        OSError: the port is taken.
        ValueError: an argument is none of these; an address without a port.
        SupervisionError: a rank has died.
    """
    setup_torch_elastic_env_async(proc_mesh, master_addr, master_port, use_ipaddr).get()


@returns_future
async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: object = None,
) -> None:
    """`setup_torch_elastic_env`, as a future for async code."""
    check_master(master_addr, master_port)
    address_family(use_ipaddr)
    actors: Any = proc_mesh.spawn("elastic", ElasticEnvironment, is_on_one_host(proc_mesh))
    try:
        await watched_members(proc_mesh, anew=True)
        host, port = await serve_store(actors, master_addr, master_port, use_ipaddr)
        await actors.setup_env.call(host, port)
    finally:
        await actors.stop()


async def serve_store(
    actors: Any, master_addr: str | None, master_port: int | None, use_ipaddr: object
) -> tuple[str, int]:
    """Have rank 0 of these SPMDActors serve a store; returns the host and port to dial."""
    try:
        host, port = await first_of(actors).get_host_port.call_one(use_ipaddr, master_port or 0)
    except ActorError as error:
        # Told as the error of this call: there is one rank, and nothing of the user's in between.
        if isinstance(error.exception, (OSError, ValueError)):
            raise error.exception from None
        raise
    return master_addr or host, port


def check_master(addr: str | None, port: int | None) -> None:
    """Raise ValueError if the ranks cannot be told to dial that."""
    if port is not None and not 0 <= port < 1 << 16:
        raise ValueError(f"master_port is a port from 0 to 65535, not {port!r}")
    if addr is not None and port is None:
        raise ValueError("master_addr without master_port: give both, or neither")
