"""Pages of docs/: their links lead somewhere, their code runs, the API reference is complete."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.notebook.kernel import running_kernel

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
NO_RUN = re.compile(r'no-run="([^"]+)"')
MOST_NOT_RUN = 8
# Words. These pages are read from top to bottom; things are looked up in those of the reference.
MOST_WORDS = {"explanation": 900, "how-to": 600}
LONGER = {"performance.md": 1500, "benchmarks.md": 1500}
# Words that each how-to guide links to the glossary, by anchor.
GLOSSARY = {
    "dim": r"dim(?:ension)?s?",
    "endpoint": r"endpoints?",
    "fault-hook": r"fault\s+hooks?",
    "host-agent": r"host\s+agents?",
    "mesh": r"mesh(?:es)?",
}
# Text in which a word is not explained: blocks of code, headings, code, links to other pages.
NOT_EXPLAINED = re.compile(
    r"^```.*?^```$|^#.*?$|`[^`]*`|!?\[[^\]]*\]\((?!\.\./reference/glossary\.md)[^)\s]+\)",
    re.DOTALL | re.MULTILINE,
)
PATIENCE_S = 120


class Block(NamedTuple):
    """A fenced block of code: its language, its fence's other words, its text."""

    language: str
    info: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return FENCE.sub("", page.read_text())


def anchor(heading: str) -> str:
    """What a heading is linked by, as GitHub and Python-Markdown make it."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", text))


def anchors(page: Path) -> set[str]:
    return {anchor(found) for found in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken: list[str] = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, place = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (place and place not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`([a-z]\w*/[\w/.]*\w)`", prose(page))  # `%monarch/x` is no path
    roots = (ROOT, ROOT / "runtime" / "monarch" / "_src")
    missing = [path for path in named if not any((root / path).exists() for root in roots)]
    assert missing == []
    programs = re.findall(r"python -m (tests\.[\w.]+)", page.read_text())
    assert [p for p in programs if not (ROOT / (p.replace(".", "/") + ".py")).exists()] == []


def test_every_page_is_listed_on_its_shelf() -> None:
    for shelf in ("how-to", "reference", "explanation"):
        indexes = list((DOCS / shelf).rglob("index.md"))
        links = [(index, link) for index in indexes for link in LINK.findall(index.read_text())]
        listed = {(index.parent / link).resolve() for index, link in links}
        there = set((DOCS / shelf).rglob("*.md")) - {DOCS / shelf / "index.md"}
        assert there - listed == set(), shelf
    tutorials = (DOCS / "tutorials" / "index.md").read_text()
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert [one.name for one in notebooks if one.name not in tutorials] == []


@pytest.mark.parametrize("shelf", MOST_WORDS)
def test_pages_that_are_read_from_top_to_bottom_are_short(shelf: str) -> None:
    lengths = {page.name: len(prose(page).split()) for page in (DOCS / shelf).glob("*.md")}
    most = MOST_WORDS[shelf]
    assert {n: words for n, words in lengths.items() if words > LONGER.get(n, most)} == {}


def _unexplained(text: str) -> list[str]:
    """The words whose first use in a how-to guide is no link to the glossary, with that use."""
    found: list[str] = []
    text = NOT_EXPLAINED.sub("", text)
    for anchor_, word in GLOSSARY.items():
        first = re.search(
            rf"\[?(?<![\w-]){word}(?![\w-])(\]\(\S*#{anchor_}\))?", text, re.IGNORECASE
        )
        if first and not first[1]:
            found.append(f"{anchor_}: {text[max(0, first.start() - 30) : first.end() + 30]!r}")
    return found


@pytest.mark.parametrize("page", HOW_TO, ids=name_of)
def test_a_how_to_guide_links_a_word_to_the_glossary_where_it_first_uses_it(page: Path) -> None:
    assert _unexplained(page.read_text()) == []


@pytest.mark.parametrize("page", HOW_TO, ids=name_of)
def test_a_how_to_guide_whose_code_replaces_the_fault_hook_explains_it(page: Path) -> None:
    if "unhandled_fault_hook" in page.read_text():
        assert "../reference/glossary.md#fault-hook" in LINK.findall(prose(page))


def test_a_word_that_a_how_to_guide_does_not_explain_is_found() -> None:
    link = "[mesh](../reference/glossary.md#mesh)"
    assert _unexplained(f"# A mesh\n`mesh` of a {link}, then a mesh, in [a mesh](x.md)") == []
    assert _unexplained("two meshes") == ["mesh: 'two meshes'"]
    assert _unexplained(f"a mesh before the {link}") != []
    assert _unexplained("a host\nagent") == [r"host-agent: 'a host\nagent'"]
    assert _unexplained("[dim](../reference/glossary.md#mesh)") != []


def _public_names() -> Iterator[tuple[str, str, object]]:
    folder = ROOT / "runtime" / "monarch"
    for file in sorted([*folder.glob("[a-z]*.py"), *folder.glob("[a-z]*/*.py")]):
        parts = [p for p in file.relative_to(folder).with_suffix("").parts if p != "__init__"]
        module = importlib.import_module(".".join(["monarch", *parts]))
        for name in module.__all__:
            yield ".".join(parts), name, getattr(module, name)


def test_every_public_name_is_in_the_api_reference() -> None:
    documented: list[str] = []
    constants: set[str] = set()
    for page in (DOCS / "reference" / "api").glob("*.md"):
        text = page.read_text()
        documented += re.findall(r"^::: monarch\.(\S+)$", text, re.MULTILINE)
        rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        constants |= {f"{page.stem}.{name}" for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(documented) == len(set(documented)), "a name stands there twice"
    seen: list[object] = []
    for path in documented:
        module, _, name = path.rpartition(".")
        seen.append(getattr(importlib.import_module(f"monarch.{module}"), name))
    missing: list[str] = []
    for module, name, value in _public_names():
        # Some classes and functions are public in two modules, and documented in one.
        known = f"{module}.{name}" in {*documented, *constants}
        again = callable(value) and any(value is one for one in seen)
        if not (known or again or (module, name) == ("actor", "config")):
            missing.append(f"{module}.{name}")
    assert missing == []


def test_every_public_class_and_function_has_a_docstring_of_its_own() -> None:
    silent: list[str] = []
    for module, name, value in _public_names():
        inherited = isinstance(value, type) and "__doc__" not in vars(value)
        if callable(value) and (inherited or not value.__doc__):
            silent.append(f"{module}.{name}")
    silent.remove("observe.State")  # names of states, which its page lists
    assert silent == []


def test_every_block_that_does_not_run_says_why() -> None:
    left_out: list[str] = []
    for page in HOW_TO:
        for block in blocks(page):
            if block.language in ("python", "ipython") and block.info.strip():
                assert NO_RUN.search(block.info), f"{name_of(page)}: {block.info}"
                left_out.append(name_of(page))
    assert len(left_out) <= MOST_NOT_RUN, left_out


def running(page: Path) -> list[Block]:
    """The blocks of a page that are run, in order."""
    code = [b for b in blocks(page) if b.language in ("python", "ipython")]
    return [b for b in code if not NO_RUN.search(b.info)]


SCRIPTS = [p for p in HOW_TO if running(p) and {b.language for b in running(p)} == {"python"}]
CELLS = [p for p in HOW_TO if any(b.language == "ipython" for b in running(p))]


@pytest.mark.slow
@pytest.mark.parametrize("page", SCRIPTS, ids=name_of)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    script = tmp_path / f"{page.stem}.py"
    script.write_text("\n".join(block.text for block in running(page)))
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=dict(os.environ),
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", CELLS, ids=name_of)
def test_the_cells_of_a_page_run(page: Path, tmp_path: Path) -> None:
    with running_kernel(tmp_path, loaded=False) as kernel:
        for block in running(page):
            kernel.ok(block.text)
        kernel.ok("%monarch stop --all")


TRACED_CALL = """
import sys
from monarch.actor import Actor, endpoint, this_host

def profiled(files):
    def note(frame, event, arg):
        if event == "call":
            files.add(frame.f_code.co_filename)
    sys.setprofile(note)

class Traced(Actor):
    @endpoint
    def begin(self):
        self.files = set()
        profiled(self.files)

    @endpoint
    def add(self, number):
        return number + 1

    @endpoint
    def end(self):
        sys.setprofile(None)
        return self.files

traced = this_host().spawn_procs().spawn("traced", Traced)
traced.begin.call_one().get()
here = set()
profiled(here)
traced.add.call_one(1).get()
sys.setprofile(None)
print(*sorted(here | traced.end.call_one().get()), sep="\\n")
"""


def test_the_walk_of_a_call_names_files_that_a_call_runs() -> None:
    text = (DOCS / "explanation" / "a_call.md").read_text()
    walk = text[text.index("## In the caller") : text.index("## What else")]
    named = set(re.findall(r"`([\w/]+\.py)`", walk))
    done = subprocess.run(
        [sys.executable, "-c", TRACED_CALL],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    ran = {path.rpartition("/monarch/_src/")[2] for path in done.stdout.splitlines()}
    assert named - ran == set()
    assert len(named) < 25
    assert f"through {len(named)} files" in text


def test_every_page_that_code_names_exists() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "runtime", "monarch_jupyter", "tests", "notebooks", "pyproject.toml"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    sources = [one for one in listed if one.endswith((".py", ".ipynb", ".toml", ".js"))]
    missing = [
        f"{source}: {page}"
        for source in sources
        for page in re.findall(r"\bdocs/[\w/-]+\.md", (ROOT / source).read_text())
        if not (ROOT / page).exists()
    ]
    assert missing == []
