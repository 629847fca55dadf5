"""`%monarch dashboard`: a link to the web page over this session."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from monarch import observe
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.rendering import html

HUB_PREFIX = "JUPYTERHUB_SERVICE_PREFIX"


@dataclass(frozen=True)
class DashboardLink:
    """The address of the page. `proxied`: the path to it through JupyterHub; empty without."""

    url: str
    proxied: str = ""

    def __repr__(self) -> str:
        return f"{self.url}\n{self._from_afar}"

    @property
    def _from_afar(self) -> str:
        port = urlsplit(self.url).port
        return f"from another machine: ssh -L {port}:127.0.0.1:{port} HOST, then the same address"

    def _repr_html_(self) -> str:
        address = self.proxied or self.url
        link = html.element(
            "a", "Open the dashboard", href=address, target="_blank", rel="noreferrer"
        )
        notes = ["the page ends with this session; with this link it can be read only"]
        if not self.proxied:
            notes.append(self._from_afar)
        return html.card(link, *(html.element("div", html.toned(one, "muted")) for one in notes))


def dashboard() -> DashboardLink:
    """Serve the web page over this session; needs the extra `admin`.

    Raises:
        CommandError: there is no session, or the server cannot start.
    """
    try:
        found = observe.dashboard()
    except RuntimeError as error:
        raise CommandError(str(error)) from None
    url = found.dashboard_url
    assert url is not None
    prefix = os.environ.get(HUB_PREFIX, "")
    parts = urlsplit(url)
    proxied = f"{prefix}proxy/{parts.port}{parts.path}?{parts.query}" if prefix else ""
    return DashboardLink(url, proxied)


def _run(invocation: Invocation) -> DashboardLink:
    if invocation.arguments.positionals:
        raise CommandError("dashboard takes no names: it shows the whole session")
    return dashboard()


COMMAND = Command(
    name="dashboard",
    usage="dashboard",
    summary="a web page with the explorer, lines, SQL and the case file of this session",
    run=_run,
)
