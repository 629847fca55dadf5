"""Fuzz one parser by what is covered of it: `python -m tests.fuzz.guided "a message" -runs=N`.

Needs the extra `fuzz`. Options behind the name are those of libFuzzer; no name shows what there is.
Runs in: a process of its own, which libFuzzer ends, with a status other than 0 if anything but what
a parser refuses with came out of it, and then writes the input to a file `crash-...`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris  # pyright: ignore[reportMissingModuleSource]

# What is imported in here is instrumented.
with atheris.instrument_imports(include=["monarch", "monarch_jupyter"]):  # pyright: ignore[reportAttributeAccessIssue]
    from monarch._src.host.status_board import Board
    from tests.fuzz.mutating import Bytes
    from tests.fuzz.parsers import parsers


def main() -> None:
    """Fuzz the parser of that name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        every = {parser.name: parser for parser in parsers(folder, Board(folder / "board", 1))}
        if len(sys.argv) < 2 or sys.argv[1] not in every:
            raise SystemExit("give one of: " + ", ".join(every))
        parser = every[sys.argv[1]]

        def one(data: bytes) -> None:
            parser.takes(Bytes(data))

        atheris.Setup([sys.argv[0], *sys.argv[2:]], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
