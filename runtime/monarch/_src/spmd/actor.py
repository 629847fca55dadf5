"""SPMDActor: sets the elastic environment of its rank, and runs a script in it, as torchrun does.

Runs in: a rank. Rank 0 serves the store at which the others find it.
Owns: the store, which stays in its process until the next one is served there: groups that were
made with it may still make others.
Invariant: the variables of all ranks agree, since each rank computes them from its own point.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from monarch._src.actor.current import context
from monarch._src.actor.endpoint import Actor, endpoint
from monarch._src.shape import Point
from monarch._src.spmd.elastic.script_requests import Arrival, script_requests
from monarch._src.spmd.rendezvous import StoreServer
from monarch._src.spmd.script import execute, run_script, run_source
from monarch._src.system.hardware import CUDA

if TYPE_CHECKING:
    from monarch._src.actor.ports import Port

USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
RUN_ID = "monarch"
_server: StoreServer | None = None


class RankPosition(msgspec.Struct, frozen=True):
    """The place of a rank: among all ranks, and among those of its group, which share a host."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def position_of(point: Point) -> RankPosition:
    """The place of a point: the last dim counts the ranks of a host, as in `{hosts, gpus}`."""
    sizes = point.extent.sizes
    local = sizes[-1] if sizes else 1
    return RankPosition(point.rank, point.extent.nelements, point.rank % local, local)


def elastic_variables(place: RankPosition, master_addr: str, master_port: int) -> dict[str, str]:
    """The variables of torch elastic for a place; the master's address is that of the store.

    As with torchrun, the ranks are clients of a store that is up before they begin
    (`TORCHELASTIC_USE_AGENT_STORE`), so no rank has to bind the port.
    """
    group = place.rank // place.local_world_size
    groups = place.world_size // place.local_world_size
    rank, world = str(place.rank), str(place.world_size)
    return {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(group),
        "GROUP_WORLD_SIZE": str(groups),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": "rank",
        RESTART_COUNT: "0",
        MAX_RESTARTS: "0",
        "TORCHELASTIC_RUN_ID": RUN_ID,
        USE_AGENT_STORE: "True",
    }


def visible_devices(own: str | None, place: RankPosition) -> str | None:
    """`CUDA_VISIBLE_DEVICES` for a program that takes the device `LOCAL_RANK`; None: as it is.

    A mesh of `gpus` gives each rank one device, number 0 to its process. Such a program wants those
    of its neighbours listed before its own.
    """
    if own is None or not own.isdecimal() or place.local_world_size == 1:
        return None
    first = int(own) - place.local_rank
    if first < 0:
        return None
    return ",".join(str(first + each) for each in range(place.local_world_size))


class SPMDActor(Actor):
    """Runs a rank of an SPMD program. Ranks are numbered by their place in the called slice."""

    def __init__(
        self,
        one_host: bool | None = None,
        ends_process: bool = False,
        arrivals: Port[Arrival] | None = None,
    ) -> None:
        """Make the actor of a rank.

        Args:
            one_host: whether all ranks are on one host; None: if the procs of the mesh are.
            ends_process: whether its process is there for one script only. Threads are then joined
                and exit functions run before the call of the script is answered.
            arrivals: the port that is told when a script comes to an `ElasticTraining`; None: such
                a training has no driver.
        """
        self._arrivals = arrivals
        self._one_host = one_host
        self._ends_process = ends_process

    @endpoint
    def get_host_port(self, use_ipaddr: object = None, port: int = 0) -> tuple[str, int]:
        """Serve a store, and return its host and port. Call it on rank 0.

        Args:
            use_ipaddr: None, `"IPv4"` or `"IPv6"`, or a member of an enum with these names.
            port: 0 takes one that is free.

        Raises:
            ModuleNotFoundError: torch is not installed here.
            OSError: the port is taken.
        """
        global _server
        one_host = self._one_host
        if one_host is None:
            one_host = len(context().actor_instance.proc_ref.places) < 2
        _server = None  # its port may be the one that is wanted
        _server = StoreServer.open(one_host=one_host, port=port, use_ipaddr=use_ipaddr)
        return _server.host, _server.port

    @endpoint
    def setup_env(
        self, master_addr: str, master_port: int, env: Mapping[str, str] | None = None
    ) -> None:
        """Set the variables of torch elastic for this rank, and those of `env`."""
        _set_environment(master_addr, master_port, env)

    @endpoint
    def main(
        self,
        master_addr: str,
        master_port: int,
        script_args: Sequence[str],
        env: Mapping[str, str] | None = None,
    ) -> bool:
        """Run `[script, arg, ...]` or `["-m", module, arg, ...]` as `__main__`; True at its end.

        Raises:
            ValueError: there is no script or module in the arguments.
            FileNotFoundError, ModuleNotFoundError: it does not exist here.
            ScriptError: it exits with a status other than 0.
            Exception: the script's own.
        """
        __tracebackhide__ = True
        _set_environment(master_addr, master_port, env)
        self._open_requests()
        run_script(script_args, ends_process=self._ends_process)
        return True

    @endpoint
    def run_source(
        self,
        master_addr: str,
        master_port: int,
        source: str,
        script_args: Sequence[str],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Run a text as `__main__`, with `[name, arg, ...]` as `sys.argv`. Raises as `main`."""
        __tracebackhide__ = True
        _set_environment(master_addr, master_port, env)
        self._open_requests()
        run_source(source, script_args, ends_process=self._ends_process)

    @endpoint
    def execute(
        self,
        master_addr: str,
        master_port: int,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Run a program in a process of its own.

        Raises:
            FileNotFoundError: there is no such program here.
            ScriptError: it exits with a status other than 0, or by a signal.
        """
        __tracebackhide__ = True
        _set_environment(master_addr, master_port, env)
        execute(command)

    def _open_requests(self) -> None:
        if self._arrivals is not None:
            script_requests.open(context().actor_instance.rank.rank, self._arrivals)


class Script(SPMDActor):
    """Runs a rank of `torchrun`."""

    __monarch_label__ = "the script"


class ElasticEnvironment(SPMDActor):
    """Sets the environment of a rank for `setup_torch_elastic_env`."""

    __monarch_label__ = "the elastic environment"


def _set_environment(master_addr: str, master_port: int, env: Mapping[str, str] | None) -> None:
    place = position_of(context().message_rank)
    devices = visible_devices(os.environ.get(CUDA), place)
    if devices is not None:
        os.environ[CUDA] = devices
    os.environ.update(elastic_variables(place, master_addr, master_port))
    os.environ.update(env or {})
