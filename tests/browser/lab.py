"""A real JupyterLab and a page of it."""

from __future__ import annotations

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
    """A server on `folder`, reached at `url`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url

    def write_notebook(self, name: str, cells: list[str]) -> None:
        """A notebook of code cells, with a kernel chosen so that no dialog asks for one."""
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": kernel},
        )
        nbformat.write(notebook, self.folder / name)


@contextmanager
def running_lab(folder: Path, labextension: Path) -> Iterator[Lab]:
    """JupyterLab with this build of the labextension, in a process group that is ended whole."""
    assert (labextension / "package.json").exists(), f"{labextension}: build it first, `make test`"
    extensions = folder / "labextensions"
    extensions.mkdir()
    (extensions / "monarch-jupyter").symlink_to(labextension)
    home = folder / "home"
    settings = home / "settings"
    for name, content in SETTINGS.items():
        (settings / name).parent.mkdir(parents=True, exist_ok=True)
        (settings / name).write_text(json.dumps(content))
    work = folder / "work"
    work.mkdir()
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        *("--ip=127.0.0.1", "--ServerApp.port=0", "--IdentityProvider.token="),
        *("--expose-app-in-browser", f"--ServerApp.root_dir={work}"),
        f"--LabApp.extra_labextensions_path={extensions}",
    ]
    server = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    assert server.stderr is not None
    try:
        said: list[str] = []
        url = ""
        for line in server.stderr:
            said.append(line)
            match = re.search(r"http://127\.0\.0\.1:\d+/", line)
            if match:
                url = match[0]
                break
        assert url, "".join(said)
        reader = threading.Thread(target=server.stderr.read, daemon=True)
        reader.start()
        yield Lab(work, url)
    finally:
        # The kernels too: each has a group of its own, and ends when its server says so.
        server.send_signal(signal.SIGINT)
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(timeout=20)
        server.stderr.close()


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
def open_notebook(browser: Browser, lab: Lab, name: str) -> Iterator[Page]:
    """A notebook in a fresh page, its kernel ready."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, device_scale_factor=2)
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    page = context.new_page()
    try:
        # A workspace of its own: JupyterLab would open the notebooks of the last page again.
        workspace = name.removesuffix(".ipynb")
        page.goto(f"{lab.url}lab/workspaces/{workspace}/tree/{name}")
        page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
        # Before this JupyterLab may still move what a test has just opened.
        page.evaluate("window.jupyterapp.restored.then(() => true)")
        page.wait_for_function(
            "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
            "?.status === 'idle'"
        )
        yield page
    finally:
        # Its kernel ends with the page, and with it every mesh.
        page.evaluate("window.jupyterapp?.shell.currentWidget?.sessionContext?.shutdown()")
        context.close()


def run_all(page: Page) -> None:
    """Start every cell of the notebook that is shown; returns before they end."""
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
