"""SPMDActor: sets the elastic environment of its rank, and runs a script in it, as torchrun does.

Runs in: a rank. Rank 0 serves the store at which the others find it.
Owns: the store, which stays in its process until the next one is served there: groups that were
made with it may still make others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from monarch._src.actor.current import context
from monarch._src.actor.endpoint import Actor, endpoint
from monarch._src.spmd.elastic.script_requests import Arrival, script_requests
from monarch._src.spmd.elastic_env import elastic_variables, position_of, visible_devices
from monarch._src.spmd.rendezvous import StoreServer
from monarch._src.spmd.script import execute, run_script, run_source
from monarch._src.system.hardware import CUDA

if TYPE_CHECKING:
    from monarch._src.actor.ports import Port

_server: StoreServer | None = None


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
