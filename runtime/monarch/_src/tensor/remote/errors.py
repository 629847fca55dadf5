"""The exception for an operation that failed on a rank, with the line that issued it."""

from __future__ import annotations

import pickle

from monarch._src.errors import RemoteException
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.sites import sites
from monarch._src.tensor.state.instructions import Failure


def remote_exception(failure: Failure, channel: Channel) -> RemoteException:
    """The exception of a failure on a rank of that channel's procs."""
    extent = channel.driver.whole.extent
    point = dict(extent.point_of_rank(failure.rank)) if failure.rank >= 0 else {}
    at = ", ".join(f"{dim}={index}" for dim, index in point.items())
    site = sites.site(failure.site)
    where = f"rank {failure.rank}" + (f" ({at})" if at else "")
    operation = failure.operation.removeprefix("aten::").removeprefix("monarch::")
    operation = failure.function or operation
    what = f"{failure.error}: {failure.message}"
    lines = [f"{operation} failed on {where} of {channel.name!r}: {what}"]
    if site.filename:
        lines.append(f"it was issued by line {site.line} of {site.filename}, in {site.function}:")
        lines.append(f"    {site.text}")
    if failure.function and failure.traceback:
        lines += ["on the rank:", failure.traceback.rstrip()]
    exception = None
    if failure.exception:
        try:
            exception = pickle.loads(failure.exception)
        except Exception:
            exception = None  # of a class that cannot be imported here
    return RemoteException(
        exception, "\n".join(lines), operation=operation, rank=failure.rank, point=point,
        filename=site.filename, line=site.line, source=site.text, traceback=failure.traceback,
    )  # fmt: skip
