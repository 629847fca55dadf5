"""`JobState`: the hosts of a job, and the addresses of the servers that watch it.

Runs in: clients. Owns nothing: hosts belong to the job, the admin server ends with the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from monarch._src.admin.side_process import AdminServer, MeshAdminConfig, start_admin
from monarch._src.mesh.client import session_for_client
from monarch._src.mesh.meshes import HostMesh
from monarch._src.telemetry.history.telemetry_config import TelemetryConfig
from monarch._src.telemetry.sql.query import QueryEngine, QueryEngineClient


@dataclass
class Monitoring:
    """What a job is asked to run beside its hosts.

    Attributes:
        admin: where the admin server listens, by `enable_admin`; None: not asked for.
        telemetry: the history to keep, by `enable_telemetry`; None: none.
    """

    admin: MeshAdminConfig | None = None
    telemetry: TelemetryConfig | None = None

    @property
    def server(self) -> MeshAdminConfig | None:
        """Where the admin server listens; None: the job has none."""
        if self.telemetry is None:
            return self.admin
        if self.admin is not None and self.admin.admin_addr is not None:
            return self.admin
        if self.telemetry.include_dashboard:
            return MeshAdminConfig(f"127.0.0.1:{self.telemetry.dashboard_port}")
        return MeshAdminConfig()

    @property
    def starts_server(self) -> bool:
        """Whether `state` starts the admin server, rather than the first read of its address."""
        dashboard = self.telemetry is not None and self.telemetry.include_dashboard
        return self.admin is not None or dashboard


class JobState:
    """The hosts of a job: an attribute with a `HostMesh` for each mesh that was requested."""

    def __init__(self, hosts: Mapping[str, HostMesh]) -> None:
        self._hosts = dict(hosts)
        self._monitoring = Monitoring()  # that of the job whose `state` returns this
        self._admin: AdminServer | None = None

    def __getattr__(self, name: str) -> HostMesh:
        hosts: dict[str, HostMesh] = self.__dict__.get("_hosts", {})
        try:
            return hosts[name]
        except KeyError:
            known = ", ".join(hosts) or "none"
            raise AttributeError(f"the job has no mesh {name!r}; it has {known}") from None

    @property
    def query_engine_client(self) -> QueryEngineClient:
        """Runs SQL over the live state of this program's session."""
        return QueryEngineClient()

    @property
    def query_engine(self) -> QueryEngine | None:
        """Runs SQL as `query_engine_client` does, with Arrow tables for answers.

        None unless the job has `enable_telemetry`.
        """
        return None if self._monitoring.telemetry is None else QueryEngine()

    @property
    def admin_url(self) -> str | None:
        """The address of the admin server; None unless the job has `enable_admin` or telemetry.

        A job with telemetry alone starts the server when this, or `telemetry_url`, is read first.

        Raises:
            RuntimeError: the server cannot start: a package of the extra `admin` is missing, say.
        """
        server = self._server()
        return None if server is None else server.url

    @property
    def telemetry_url(self) -> str | None:
        """The address of the server that answers `POST /v1/query`: that of the admin server.

        None unless the job has `enable_telemetry`.

        Raises:
            RuntimeError: as `admin_url`.
        """
        return None if self._monitoring.telemetry is None else self.admin_url

    @property
    def dashboard_url(self) -> str | None:
        """The address of the web page, with a token that reads.

        None unless the job has an admin server at a port, as `enable_telemetry` with
        `include_dashboard=True` starts it.

        Raises:
            RuntimeError: as `admin_url`.
        """
        config = self._monitoring.server
        if self._admin is None and (config is None or config.admin_addr is None):
            return None  # the server would listen at a Unix socket, which a browser cannot open
        server = self._server()
        return None if server is None else server.dashboard_url

    def _server(self) -> AdminServer | None:
        """The admin server, which is started if the job asks for one."""
        config = self._monitoring.server
        if self._admin is None and config is not None:
            session_for_client()
            self._admin = start_admin(config)
        return self._admin

    def _monitored(self, monitoring: Monitoring) -> JobState:
        """This state, with the servers and the history of a job. Starts what that asks for.

        Raises:
            RuntimeError: the server cannot start.
        """
        self._monitoring = monitoring
        if monitoring.starts_server:
            self._server()
        return self

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._hosts]

    def __iter__(self) -> Iterator[str]:
        """The names of the meshes."""
        return iter(self._hosts)

    def __getitem__(self, name: str) -> HostMesh:
        return self._hosts[name]

    def __repr__(self) -> str:
        return f"JobState({', '.join(f'{name}={mesh!r}' for name, mesh in self._hosts.items())})"
