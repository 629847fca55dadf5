"""Execute the tutorials and write their outputs into them, for readers who run nothing.

    python scripts/execute_notebooks.py [NOTEBOOK]...

What differs from machine to machine is replaced: folders, the name of the host, and the metadata of
the execution. The metadata get a digest of the sources, by which `check_notebooks.py` sees outputs
of older sources.
"""

import re
import socket
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import nbformat
from check_notebooks import DIGEST, digest_of, notebooks
from nbclient import NotebookClient
from output_kinds import is_emptied

ROOT = Path(__file__).parents[1]
CELL_SECONDS = 120
# The file that ipykernel names after each cell in tracebacks.
CELL_FILE = re.compile(re.escape(tempfile.gettempdir()) + r"/ipykernel_\d+/\d+\.py")
HOST = re.compile(rf"\b{re.escape(socket.gethostname())}\b")


def replacements() -> list[tuple[str, str]]:
    """Texts of this machine, longest first, and their substitutes."""
    texts = {
        str(ROOT): "~/monarch-jupyter",
        sys.prefix: "~/.venv",
        sys.base_prefix: "/usr",
        str(Path.home()): "~",
        tempfile.gettempdir(): "/tmp",
    }
    return sorted(texts.items(), key=lambda pair: -len(pair[0]))


def without_machine(value: object, texts: Iterable[tuple[str, str]]) -> object:
    """The value with the texts of this machine replaced in every string of it."""
    if isinstance(value, str):
        value = HOST.sub("laptop", CELL_FILE.sub("<cell>", value))
        for old, new in texts:
            value = value.replace(old, new)
        return value
    if isinstance(value, list):
        return [without_machine(one, texts) for one in value]
    if isinstance(value, dict):
        return {key: without_machine(one, texts) for key, one in value.items()}
    return value


def execute(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    metadata = {key: notebook.metadata[key] for key in ("kernelspec",)}
    client = NotebookClient(
        notebook, timeout=CELL_SECONDS, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    texts = replacements()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            seen = [output for output in cell.outputs if not is_emptied(output)]
            cell.outputs = nbformat.from_dict(without_machine(seen, texts))
    notebook.metadata = nbformat.from_dict(
        {**metadata, "language_info": {"name": "python"}, DIGEST: digest_of(notebook)}
    )
    nbformat.write(notebook, path)


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]] or notebooks()
    for path in paths:
        print(f"== {path}", flush=True)
        execute(path)


if __name__ == "__main__":
    main()
