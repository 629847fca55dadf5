"""The places in the program from which operations are issued, as numbers.

A place is a code object and an offset in it. The line is looked up when an error needs it.
"""

from __future__ import annotations

import linecache
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

MOST_SITES = 1 << 16


class CallSite(NamedTuple):
    """A line of the program."""

    filename: str
    line: int
    function: str
    text: str


class CallSites:
    """Numbers of call sites. Frames of files under `internal` are passed over."""

    def __init__(self, internal: tuple[str, ...]) -> None:
        self._internal = internal
        # By id: code of two files, or of two cells, is equal if only its file differs.
        self._passed: dict[int, CodeType] = {}
        self._of_code: dict[int, tuple[CodeType, dict[int, int]]] = {}
        self._sites: list[tuple[CodeType, int] | CallSite] = [CallSite("", 0, "", "")]

    def number(self, frame: FrameType | None) -> int:
        """The number of the innermost place of the program, from that frame outwards; 0: none."""
        passed = self._passed
        while frame is not None:
            code = frame.f_code
            if id(code) not in passed:
                entry = self._of_code.get(id(code))
                if entry is None:
                    if code.co_filename.startswith(self._internal):
                        passed[id(code)] = code
                        frame = frame.f_back
                        continue
                    entry = self._of_code[id(code)] = code, {}
                found = entry[1]
                offset = frame.f_lasti
                number = found.get(offset)
                if number is None:
                    number = found[offset] = self._enter(code, offset)
                return number
            frame = frame.f_back
        return 0

    def site_of_error(self, trace: TracebackType | None) -> CallSite:
        """The innermost place of the program in a traceback."""
        found = CallSite("", 0, "", "")
        while trace is not None:
            code = trace.tb_frame.f_code
            if not code.co_filename.startswith(self._internal):
                text = linecache.getline(code.co_filename, trace.tb_lineno).strip()
                found = CallSite(code.co_filename, trace.tb_lineno, code.co_name, text)
            trace = trace.tb_next
        return found

    def _enter(self, code: CodeType, offset: int) -> int:
        if len(self._sites) % MOST_SITES == 0:  # a session that has run many cells
            self._sites = [self._told(one) for one in self._sites]
            self._of_code.clear()
        self._sites.append((code, offset))
        return len(self._sites) - 1

    def site(self, number: int) -> CallSite:
        """The place of that number."""
        found = self._told(self._sites[number])
        self._sites[number] = found
        return found

    @staticmethod
    def _told(site: tuple[CodeType, int] | CallSite) -> CallSite:
        if isinstance(site, CallSite):
            return site
        code, offset = site
        line = line_of(code, offset)
        text = linecache.getline(code.co_filename, line).strip()
        return CallSite(code.co_filename, line, code.co_name, text)


def line_of(code: CodeType, offset: int) -> int:
    """The line of an offset in compiled code."""
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno
