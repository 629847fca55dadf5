"""A real JupyterLab and a page of it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE_MS = 60_000
# No news pop-up, no question about an update.
SETTINGS = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {
        "fetchNews": "false",
        "checkForUpdates": False,
    }
}


class Lab:
    """A server on `folder`/work, reached at `url` while it runs; its settings stay when it ends.

    JupyterLab, and Notebook 7 where it is installed, with this build of the labextension, in a
    process group that is ended whole. A `base_url` is what a hub gives each user's server.
    """

    def __init__(self, folder: Path, labextension: Path, base_url: str = "/") -> None:
        built = labextension / "package.json"
        assert built.exists(), f"{labextension}: build it first, `make test`"
        extensions = folder / "labextensions"
        extensions.mkdir()
        (extensions / "monarch-jupyter").symlink_to(labextension)
        home = folder / "home"
        settings = home / "settings"
        for name, content in SETTINGS.items():
            (settings / name).parent.mkdir(parents=True, exist_ok=True)
            (settings / name).write_text(json.dumps(content))
        self.folder = folder / "work"
        self.folder.mkdir()
        self.url = ""
        self._base_url = base_url
        self._environment = {
            **os.environ,
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
            "IPYTHONDIR": str(home / "ipython"),
        }
        self._command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
            *("--ip=127.0.0.1", "--ServerApp.port=0", "--IdentityProvider.token="),
            f"--ServerApp.root_dir={self.folder}",
            "--ServerApp.jpserver_extensions=monarch_jupyter.server_extension=True",
            f"--ServerApp.base_url={base_url}",
        ]
        for app in ("LabApp", "JupyterNotebookApp"):
            self._command += [
                f"--{app}.expose_app_in_browser=True",
                f"--{app}.extra_labextensions_path={extensions}",
            ]
        if importlib.util.find_spec("notebook") is not None:
            self._command.append("--ServerApp.jpserver_extensions=notebook=True")

    def start(self) -> None:
        """Start the server; returns when it can be reached."""
        server = self._server = subprocess.Popen(
            self._command,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
            start_new_session=True,
        )
        assert server.stderr is not None
        said: list[str] = []
        for line in server.stderr:
            said.append(line)
            match = re.search(r"http://127\.0\.0\.1:\d+", line)
            if match:
                self.url = match[0] + self._base_url
                break
        else:
            raise AssertionError("".join(said))
        threading.Thread(target=server.stderr.read, daemon=True).start()

    def stop(self) -> None:
        """End the server, and its kernels: each has a group of its own, and ends when told to."""
        server = self._server
        server.send_signal(signal.SIGINT)
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(timeout=20)
        assert server.stderr is not None
        server.stderr.close()

    def write_notebook(self, name: str, cells: list[str]) -> None:
        """A notebook of code cells, with a kernel chosen so that no dialog asks for one."""
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": kernel},
        )
        nbformat.write(notebook, self.folder / name)


@contextmanager
def running_lab(folder: Path, labextension: Path, base_url: str = "/") -> Iterator[Lab]:
    """A server, ended on the way out."""
    lab = Lab(folder, labextension, base_url)
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Chromium as Debian ships it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_notebook(
    browser: Browser, lab: Lab, name: str, address: str = "lab/workspaces/{stem}/tree/{name}"
) -> Iterator[Page]:
    """A notebook in a fresh page, its kernel ready."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, device_scale_factor=2)
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    page = context.new_page()
    try:
        # A workspace of its own: JupyterLab would open the notebooks of the last page again.
        workspace = name.removesuffix(".ipynb")
        page.goto(lab.url + address.format(stem=workspace, name=name))
        page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
        # Before this JupyterLab may still move what a test has just opened.
        page.evaluate("window.jupyterapp.restored.then(() => true)")
        page.wait_for_function(
            "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
            "?.status === 'idle'"
        )
        yield page
    finally:
        # Every kernel ends with the page, and with it its meshes: a server that ends waits long.
        page.evaluate("window.jupyterapp?.serviceManager.sessions.shutdownAll().catch(() => {})")
        context.close()


def run_in_new_cell(page: Page, source: str) -> None:
    """Insert a cell below and run it."""
    page.evaluate(
        "source => window.jupyterapp.commands.execute('notebook:insert-cell-below').then(() => {"
        "  const cell = window.jupyterapp.shell.currentWidget.content.activeCell;"
        "  cell.model.sharedModel.setSource(source);"
        "  void window.jupyterapp.commands.execute('notebook:run-cell');"
        "})",
        source,
    )


def run_all(page: Page) -> None:
    """Start every cell of the notebook that is shown; returns before they end."""
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")


def restart_kernel(page: Page) -> None:
    """Restart the kernel of the current notebook from the menu; returns when it has restarted."""
    page.evaluate(
        "() => {"
        "  const context = window.jupyterapp.shell.currentWidget.sessionContext;"
        "  window.restarted = new Promise(done => context.kernelChanged.connect(() => done(true)));"
        "}"
    )
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.locator(".lm-Menu-item[data-command='kernelmenu:restart']").click()
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    page.evaluate("window.restarted")
