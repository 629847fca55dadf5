"""Memory that other processes read and write, one-sided: see `docs/reference/bulk_data.md`."""

from monarch._src.errors import (
    RDMAError,
    RDMAHandleError,
    RDMAOwnerLostError,
    RDMAReadTransferWarning,
    RDMATcpFallbackWarning,
    RDMATimeoutError,
    RDMAUnavailableError,
    RDMAWriteTransferWarning,
    StateDictMismatchError,
    StateDictVersionError,
)
from monarch._src.rdma.buffer import RDMAAction, RDMABuffer
from monarch._src.rdma.report import (
    TransportUse,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
    transports,
)
from monarch._src.rdma.shared_segments import shared_empty
from monarch._src.rdma.weights.layout import TensorSlice
from monarch._src.rdma.weights.progress import PullProgress
from monarch._src.rdma.weights.publish import StateDictHandle, StateDictSource, put_state_dict
from monarch._src.rdma.weights.pull import PulledStateDict, StateDictReader, get_state_dict
from monarch.actor import context as _context  # registers this process as a client

del _context

__all__ = [
    "PullProgress",
    "PulledStateDict",
    "RDMAAction",
    "RDMABuffer",
    "RDMAError",
    "RDMAHandleError",
    "RDMAOwnerLostError",
    "RDMAReadTransferWarning",
    "RDMATcpFallbackWarning",
    "RDMATimeoutError",
    "RDMAUnavailableError",
    "RDMAWriteTransferWarning",
    "StateDictHandle",
    "StateDictMismatchError",
    "StateDictReader",
    "StateDictSource",
    "StateDictVersionError",
    "TensorSlice",
    "TransportUse",
    "get_rdma_backend",
    "get_state_dict",
    "is_ibverbs_available",
    "is_rdma_available",
    "put_state_dict",
    "shared_empty",
    "transports",
]
