"""The sessions of this machine as the source of the terminal view, without a server.

Runs in: the command line; any thread.
"""

from __future__ import annotations

from monarch._src.admin import handlers
from monarch._src.admin.cluster_reader import ClusterReader
from monarch._src.admin.explain import case_from
from monarch._src.admin.state.case_file import CaseFile
from monarch._src.admin.state.nodes import Cluster
from monarch._src.admin.state.openapi import StacksAnswer


class LocalSource:
    """Asks the agents itself."""

    def __init__(self, reader: ClusterReader) -> None:
        self._reader = reader

    def cluster(self) -> Cluster:
        """A new snapshot."""
        return self._reader.cluster(0.0)

    def stacks(self, reference: str) -> StacksAnswer:
        """The stacks of a proc, idle or not."""
        return handlers.stacks(self._reader, reference, {"idle": "1"})

    def case(self, *, stacks: bool = True) -> CaseFile:
        """The case file."""
        return case_from(
            lambda needs, seconds: self._reader.collect(dict(needs), seconds), None, stacks
        )
