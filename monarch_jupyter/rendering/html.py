"""Static HTML that is safe and readable anywhere. No I/O.

Readers are JupyterLab, nbconvert, VS Code and GitHub, which drops every style: so text and table
structure carry all information; inline styles only add to it. Colours are the
notebook theme's, each with a fallback.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Literal

Tone = Literal["plain", "muted", "good", "busy", "bad"]

MUTED = "color: var(--jp-ui-font-color2, #6b7280)"
_BORDER = "1px solid var(--jp-border-color2, #c4c9d0)"
_MONO = "font-family: var(--jp-code-font-family, monospace); font-size: 0.92em"
_TONES: dict[Tone, str] = {
    "plain": "",
    "muted": MUTED,
    "good": "color: var(--jp-success-color0, #1b7a3d)",
    "busy": "color: var(--jp-brand-color0, #0b62c4)",
    "bad": "color: var(--jp-error-color0, #c62828)",
}


class Html(str):
    """Finished markup: all of its external text is escaped already."""

    __slots__ = ()


_ONE_LINE = 24
"""Characters of a table cell that are never broken into lines."""


_TILE = "border: none; padding: 0 0.2em; font-size: 12px; line-height: 1.15"


def text(value: object) -> Html:
    """Any value as text, escaped."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def join(parts: Iterable[object], between: str = "") -> Html:
    """Parts one after another, each escaped unless it is `Html`."""
    return Html(between.join(text(part) for part in parts))


def element(name: str, *content: object, style: str = "", **attributes: str) -> Html:
    """`<name ...>content</name>`; an underscore in an attribute's name becomes a hyphen."""
    pairs = {"style": style} if style else {}
    pairs |= {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    inner = "".join(f' {key}="{html.escape(value)}"' for key, value in pairs.items())
    return Html(f"<{name}{inner}>{join(content)}</{name}>")


def toned(value: object, tone: Tone) -> Html:
    """Text in the colour of a tone."""
    return element("span", value, style=_TONES[tone]) if _TONES[tone] else text(value)


def code(value: object) -> Html:
    """Text in the code font."""
    return element("code", value)


def details(summary: object, *content: object, open_: bool = False) -> Html:
    """Content that one click unfolds."""
    opened = {"open": "open"} if open_ else {}
    return element(
        "details", element("summary", summary, style="cursor: pointer"), *content, **opened
    )


def block(content: str) -> Html:
    """Preformatted text, scrolled rather than wrapped."""
    return element(
        "pre", content, style=f"margin: 0.3em 0; padding: 0.2em 0.6em; overflow-x: auto; {_MONO}"
    )


def card(*content: object) -> Html:
    """The outermost element of a representation."""
    return element(
        "div", *content, style="line-height: 1.45; color: var(--jp-content-font-color1, inherit)"
    )


def table(head: Iterable[object], rows: Iterable[Iterable[object]], **attributes: str) -> Html:
    """A table with column heads; elements from `cell` or `header` are used unchanged."""
    names = list(head)
    heads = [name if is_cell(name) else header(name, "col") for name in names]
    top = element("thead", element("tr", *heads)) if names else ""
    body = element(
        "tbody",
        *[element("tr", *[part if is_cell(part) else cell(part) for part in row]) for row in rows],
    )
    style = "border-collapse: collapse; margin: 0.3em 0; text-align: left"
    return element("table", top, body, style=style, **attributes)


def cell(content: object, style: str = "", **attributes: str) -> Html:
    """One cell of a table. A short text stays on one line, so that a figure keeps its unit."""
    if not isinstance(content, Html) and len(str(content)) <= _ONE_LINE:
        style = f"white-space: nowrap; {style}"
    look = f"border: {_BORDER}; padding: 0.2em 0.6em; text-align: left; {style}".rstrip("; ")
    return element("td", content, style=look, **attributes)


def tile(content: object, **attributes: str) -> Html:
    """A small cell of a table: a sign, of which there are many."""
    return element("td", content, style=f"{_TILE}; text-align: center", **attributes)


def tile_header(content: object, scope: str = "col") -> Html:
    """The head of a column or a row of tiles."""
    side = "left" if scope == "row" else "center"
    look = f"{_TILE}; text-align: {side}; font-weight: normal; white-space: nowrap; {MUTED}"
    return element("th", content, style=look, scope=scope)


def scrolled(content: object) -> Html:
    """Content that scrolls by itself where it is wider or much higher than the page."""
    return element("div", content, style="overflow: auto; max-height: 32em", tabindex="0")


def header(content: object, scope: str) -> Html:
    """The head of a column or a row."""
    look = f"border: {_BORDER}; padding: 0.2em 0.6em; text-align: left; font-weight: 600"
    return element("th", content, style=look, scope=scope)


def is_cell(part: object) -> bool:
    """Whether this is a finished cell or header of a table."""
    return isinstance(part, Html) and part.startswith(("<td", "<th"))


def pairs(entries: Mapping[str, object]) -> Html:
    """A two-column table of names and values."""
    return table((), [(header(name, "row"), value) for name, value in entries.items()])
