"""Joins the pages' modules into one without imports, as anywidget needs it.

Each file is a plain ES module of its own, for editors, type checkers, tests and the side panel. A
widget's module must be one text, because it has no URL to import from. So each module becomes a
function that returns its exports, which keeps names apart.
"""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).parent / "js"
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:const|function|class) (\w+))", re.MULTILINE)
_DEFAULT = re.compile(r"^export default ", re.MULTILINE)


def joined(name: str) -> str:
    """The module of that name, after all modules that it imports."""
    done: dict[str, str] = {}
    _add(name, done)
    return "\n".join([*done.values(), f"export default module_{name}.default;\n"])


def styles(*names: str) -> str:
    """These style sheets one after another."""
    return "\n".join((_FOLDER / f"{name}.css").read_text("utf-8") for name in names)


def _add(name: str, done: dict[str, str]) -> None:
    if name in done:
        return
    text = (_FOLDER / f"{name}.js").read_text("utf-8")
    for _, imported in _IMPORT.findall(text):
        _add(imported, done)
    text = _IMPORT.sub(r"const \1 = module_\2;\n", text)
    exports = [found for _, found in _EXPORT.findall(text)]
    text = _EXPORT.sub(r"\1", text)
    if _DEFAULT.search(text):
        text = _DEFAULT.sub("const $default = ", text)
        exports.append("default: $default")
    body = f"{text}\nreturn {{ {', '.join(exports)} }};"
    done[name] = f"const module_{name} = (() => {{\n{body}\n}})();\n"
