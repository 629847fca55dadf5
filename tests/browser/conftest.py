"""One JupyterLab for all tests in a real page, and one browser for those of a file.

What is long, and said in short by another test, `make stress` runs, and who renews the pictures.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.lab import Lab, running_browser, running_lab

REPOSITORY = Path(__file__).parents[2]
LABEXTENSION = REPOSITORY / "labextension" / "dist"


# As behind a hub: all pages, the panel and the server extension work there too.
BASE_URL = "/user/someone/"
WITH_PICTURES = os.environ.get("MONARCH_SCREENSHOTS") == "1"
long = pytest.mark.skipif(
    os.environ.get("MONARCH_TEST_LONG_PAGES") != "1" and not WITH_PICTURES,
    reason="long: `make stress` runs it (MONARCH_TEST_LONG_PAGES=1)",
)


@contextmanager
def a_lab() -> Iterator[Lab]:
    """A server of one's own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_lab(Path(folder), LABEXTENSION, BASE_URL) as running,
    ):
        yield running


@pytest.fixture(scope="package")
def lab() -> Iterator[Lab]:
    with a_lab() as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture
def screenshot_path(tmp_path: Path) -> Path:
    """Where pictures go: into the docs when they are to be renewed."""
    if not WITH_PICTURES:
        return tmp_path
    folder = REPOSITORY / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
