"""One JupyterLab and one browser for all tests here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.lab import Lab, running_browser, running_lab

REPOSITORY = Path(__file__).parents[2]
LABEXTENSION = REPOSITORY / "labextension" / "dist"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_lab(Path(folder), LABEXTENSION) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture
def screenshot_path(tmp_path: Path) -> Path:
    """Where pictures go: into the docs when they are to be renewed."""
    if os.environ.get("MONARCH_SCREENSHOTS") != "1":
        return tmp_path
    folder = REPOSITORY / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
