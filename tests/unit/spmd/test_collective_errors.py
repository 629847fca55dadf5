"""Exceptions of collectives, told apart from those of a program with the same text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
dist: Any = pytest.importorskip("torch.distributed")

from monarch._src.spmd.collective_errors import (  # noqa: E402
    Failure,
    StoreEndedError,
    failure_of,
    is_raised_by_statement,
    tells_of_peer,
)

CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
LATE = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms"
)


def raised_by(function: Callable[[], Any]) -> BaseException:
    """The exception that a function raises."""
    with pytest.raises(BaseException) as raised:  # noqa: PT011
        function()
    return raised.value


def stated(error: BaseException) -> BaseException:
    """The exception, raised by a statement."""

    def raise_it() -> None:
        raise error

    return raised_by(raise_it)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (CLOSED, Failure.CONNECTION),
        (LATE, Failure.OWN),
        ("Application timeout caused pair closure", Failure.OWN),
        ("[Rank 0]: Ranks 2 failed to pass monitoredBarrier in 3000 ms", Failure.OWN),
        ("Expected all tensors to be on the same device", Failure.NONE),
    ],
)
def test_the_text_of_a_native_error_decides(text: str, failure: Failure) -> None:
    error = RuntimeError(text)
    assert failure_of(error) is failure
    assert failure_of(stated(error)) is Failure.NONE


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("s3: Broken pipe"),
        RuntimeError("Connection reset by the database"),
        RuntimeError("no module nvidia-nccl-cu12"),
        RuntimeError(CLOSED),
        BrokenPipeError("Broken pipe"),
        ConnectionResetError("Connection reset by peer"),
        TimeoutError(LATE),
        NotImplementedError(CLOSED),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:40],
)
def test_an_error_of_the_program_is_its_own(error: BaseException) -> None:
    assert failure_of(stated(error)) is Failure.NONE


def test_torchs_own_classes_need_no_text() -> None:
    assert failure_of(dist.DistBackendError("NCCL error")) is Failure.CONNECTION
    assert failure_of(dist.DistNetworkError("Connection reset by peer")) is Failure.CONNECTION
    assert failure_of(dist.DistStoreError("wait timeout after 3000ms")) is Failure.NONE
    assert failure_of(stated(StoreEndedError("ended"))) is Failure.CONNECTION


def test_an_error_that_a_program_raises_from_that_of_a_collective_counts() -> None:
    error = ValueError("the step has failed")
    error.__cause__ = RuntimeError(CLOSED)
    assert failure_of(stated(error)) is Failure.CONNECTION


def test_c_code_raises_without_a_statement() -> None:
    assert not is_raised_by_statement(raised_by(lambda: torch.ones(2) @ torch.ones(3)))
    assert not is_raised_by_statement(raised_by(lambda: int("x")))
    assert is_raised_by_statement(stated(ValueError("x")))


MISMATCH = "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.nbytes"


@pytest.mark.parametrize(
    ("error", "tells"),
    [
        (RuntimeError(CLOSED), True),
        (RuntimeError(CLOSED.replace("closed", "reset")), True),
        (RuntimeError(MISMATCH), False),
        (RuntimeError(LATE), False),
        (dist.DistBackendError("NCCL error: remote process exited or there was a network error"),
         True),
        (dist.DistBackendError("NCCL error: invalid usage"), False),
        (dist.DistNetworkError("failed to recv, got 0 bytes"), True),
        (StoreEndedError("the process groups of this rank have ended"), True),
        (ValueError("Connection closed by peer"), False),
    ],
)  # fmt: skip
def test_an_error_tells_that_a_peer_has_left(error: BaseException, tells: bool) -> None:
    assert tells_of_peer(error) is tells

    def raised_from() -> None:
        raise ValueError("the step failed") from error

    assert tells_of_peer(raised_by(raised_from)) is tells
