"""`%monarch` and `%%monarch`: a line of the notebook handed to its subcommand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from monarch.actor import ActorError, SupervisionError
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.completion import Completion
from monarch_jupyter.magics.table import run_line

NAME = "monarch"
OF_RANKS = (ActorError, SupervisionError)
"""They say what has become of the ranks, also after an interrupt."""


class MonarchMagic:
    """The magic in one shell, from `install` until `restore`."""

    def __init__(self, shell: InteractiveShell, interrupts: Callable[[], int]) -> None:
        """`interrupts` counts the interrupts of cells."""
        self._shell: Any = shell
        self._interrupts = interrupts
        self._completion = Completion(shell)
        self._transforms: list[Any] = self._shell.input_transformer_manager.cleanup_transforms

    def install(self) -> None:
        """Register the magic and its completion."""
        self._shell.register_magic_function(self._line, "line", NAME)
        self._shell.register_magic_function(self._cell, "cell", NAME)
        self._completion.install()
        self._transforms.append(without_body)

    def restore(self) -> None:
        """Remove both. Idempotent."""
        magics = self._shell.magics_manager.magics
        magics["line"].pop(NAME, None)
        magics["cell"].pop(NAME, None)
        self._completion.restore()
        if without_body in self._transforms:
            self._transforms.remove(without_body)

    def _line(self, line: str) -> object:
        return self._run(line, None)

    def _cell(self, line: str, cell: str) -> object:
        return self._run(line, cell)

    def _run(self, line: str, cell: str | None) -> object:
        namespace = self._shell.user_ns
        number = len(namespace.get("In", [""])) - 1  # the count has moved on to the next cell
        before = self._interrupts()
        try:
            return run_line(line, namespace, cell, number, say=_say)
        except OF_RANKS:
            raise
        except Exception as error:
            # Libraries in C see the interrupt first, and raise an error of their own for it.
            if self._interrupts() != before:
                raise KeyboardInterrupt from None
            if isinstance(error, CommandError):
                raise UsageError(str(error)) from None
            raise


def without_body(lines: list[str]) -> list[str]:
    """A `%%monarch` without lines below it as `%monarch`, for its help or its own error.

    IPython itself says of such a cell that it is empty, whatever its options.
    """
    if len(lines) == 1 and lines[0].startswith(f"%%{NAME}"):
        return [lines[0][1:]]
    return lines


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
