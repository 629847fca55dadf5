"""Run a notebook and print what its cells show, as it goes; the first cell that fails ends it.

Pictures and the executed notebook are saved under build/demo.
"""

import argparse
import base64
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

SOURCE_LINES = 12
CELL_SECONDS = 120
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PICTURES = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}


def shortened(source: str) -> Iterator[str]:
    """The first lines of a cell, and how many more there are."""
    lines = source.rstrip().splitlines()
    yield from lines[:SOURCE_LINES]
    if len(lines) > SOURCE_LINES:
        yield f"... ({len(lines) - SOURCE_LINES} more lines)"


def save_picture(mime: str, data: str, path: Path) -> Path:
    path = path.with_suffix(f".{PICTURES[mime]}")
    path.write_bytes(data.encode() if mime == "image/svg+xml" else base64.b64decode(data))
    return path


def shown(output: nbformat.NotebookNode, picture: Path) -> Iterator[str]:
    """What a person without a browser sees of one output."""
    if output.output_type == "stream":
        yield output.text
    elif output.output_type == "error":
        yield "\n".join(output.traceback) or f"{output.ename}: {output.evalue}"
    else:
        for mime in PICTURES:
            if mime in output.data:
                yield f"[picture saved as {save_picture(mime, output.data[mime], picture)}]"
                return
        yield output.data.get("text/plain", f"[{', '.join(output.data)}]")


def print_cell(cell: nbformat.NotebookNode, index: int, picture: Path) -> None:
    for number, output in enumerate(cell.outputs):
        for text in shown(output, picture.with_name(f"{picture.name}-{index}-{number}")):
            print(text.rstrip("\n") if sys.stdout.isatty() else ESCAPES.sub("", text).rstrip("\n"))
    print(flush=True)


@contextmanager
def local_sockets(client: NotebookClient) -> Iterator[None]:
    """Let the kernel be talked to through files, not ports: only this process has to reach it."""
    with tempfile.TemporaryDirectory() as folder:
        manager = client.create_kernel_manager()
        manager.transport = "ipc"
        manager.ip = f"{folder}/kernel"
        yield


def run(path: Path, target: Path) -> bool:
    """Execute `path`, print it, save it under `target`; True when no cell failed."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=CELL_SECONDS, resources={"metadata": {"path": str(path.parent)}}
    )
    ok = True
    with local_sockets(client), client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "markdown":
                print(cell.source.strip(), end="\n\n", flush=True)
            if cell.cell_type != "code":
                continue
            for line in shortened(cell.source):
                print(f">>> {line}".rstrip())
            sys.stdout.flush()
            try:
                client.execute_cell(cell, index)
            except CellExecutionError:
                ok = False
            print_cell(cell, index, target / path.stem)
            if not ok:
                print(f"Cell {index} of {path} failed.", file=sys.stderr)
                break
    nbformat.write(notebook, target / path.name)
    return ok


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--target", type=Path, default=Path("build/demo"))
    options = parser.parse_args()
    options.target.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    ok = run(options.notebook, options.target)
    print(f"{options.notebook}: {time.monotonic() - begin:.1f} s, saved in {options.target}")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
