"""A small extension of the Jupyter server, for the data of the side panel that no kernel has.

Runs in: the server's process. Read-only: it lists the sessions of this user on this machine, those
of kernels that are gone too, and hands out the tutorials. It holds no mesh and starts nothing.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import ensure_async, url_path_join
from tornado import web

from monarch import session
from monarch_jupyter.protocol.answers import session_message

_HERE = Path(__file__).parent
_TUTORIALS = (_HERE / "tutorials", _HERE.parent / "notebooks")
"""Where they are in a wheel, and in a checkout."""


def tutorials() -> dict[str, Path]:
    """The tutorials that are installed, by name."""
    folder = next((one for one in _TUTORIALS if one.is_dir()), None)
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.ipynb"))}


class SessionsHandler(APIHandler):
    """`GET monarch/sessions`."""

    @web.authenticated
    async def get(self) -> None:
        """All sessions, as the wire of pages has them."""
        # It looks at files and processes, which may take a moment.
        found = await asyncio.to_thread(session.sessions)
        notebooks = await self._notebooks()
        said = [session_message(one, notebooks.get(one.client_pid or 0)) for one in found]
        self.finish(json.dumps({"sessions": said}))

    async def _notebooks(self) -> dict[int, str]:
        """The path of each notebook of this server, by the process of its kernel."""
        found: dict[int, str] = {}
        manager = cast("Any", self.session_manager)
        for one in cast("list[Any]", await ensure_async(manager.list_sessions())):
            path, kernel_id = one["path"], one["kernel"]["id"]
            if kernel_id in self.kernel_manager:
                # Only local kernels have a process here.
                provisioner = getattr(
                    self.kernel_manager.get_kernel(kernel_id), "provisioner", None
                )
                pid = getattr(provisioner, "pid", None)
                if isinstance(pid, int):
                    found[pid] = path
        return found


class TutorialsHandler(APIHandler):
    """`GET monarch/tutorials`."""

    @web.authenticated
    async def get(self) -> None:
        """The names of the tutorials."""
        self.finish(json.dumps({"tutorials": list(tutorials())}))


class TutorialHandler(APIHandler):
    """`GET monarch/tutorials/NAME`."""

    @web.authenticated
    async def get(self, name: str) -> None:
        """A tutorial as a notebook; 404 where there is none of that name."""
        path = tutorials().get(name)
        if path is None:
            raise web.HTTPError(404, f"there is no tutorial {name}")
        self.finish(path.read_text("utf-8"))


def _jupyter_server_extension_points() -> list[dict[str, str]]:  # pyright: ignore[reportUnusedFunction]
    """The extension points of this module, for the Jupyter server."""
    return [{"module": "monarch_jupyter.server_extension"}]


def _load_jupyter_server_extension(server: Any) -> None:  # pyright: ignore[reportUnusedFunction]
    """Load the extension; the Jupyter server calls this."""
    base = cast("str", server.web_app.settings["base_url"])
    handlers = [
        (url_path_join(base, "monarch", "sessions"), SessionsHandler),
        (url_path_join(base, "monarch", "tutorials"), TutorialsHandler),
        (url_path_join(base, "monarch", "tutorials", r"([\w-]+)"), TutorialHandler),
    ]
    server.web_app.add_handlers(".*$", handlers)
