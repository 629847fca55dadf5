"""Warns when another distribution owns the same import name, `monarch`.

Runs in: any process, at import. The check looks only for an installed `torchmonarch` by its
metadata folder on `sys.path`: no import of it, no scan of files.
"""

from __future__ import annotations

import os
import sys
import warnings

RIVAL = "torchmonarch"
REMEDY = (
    f"{RIVAL} is installed beside monarch-jupyter and both own the import name `monarch`; files of "
    "one overwrite the other's. Keep one of them: `pip uninstall torchmonarch monarch-jupyter`, "
    "then install the one you want again."
)


def rival_install(paths: list[str] | None = None) -> str | None:
    """The folder of an installed torchmonarch on these paths (default `sys.path`), or None."""
    for path in sys.path if paths is None else paths:
        try:
            names = os.listdir(path or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith(RIVAL) and name.endswith((".dist-info", ".egg-info")):
                return os.path.join(path, name)
    return None


def warn_of_rival_install() -> None:
    """Warn once with the remedy if the other distribution is there."""
    if rival_install() is not None:
        warnings.warn(REMEDY, ImportWarning if _is_child() else UserWarning, stacklevel=3)


def _is_child() -> bool:
    # A proc repeats what its client has already been told.
    return "MONARCH_CHILD" in os.environ
