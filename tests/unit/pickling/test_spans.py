"""Slices of tensors and arrays: the span that a message uses travels, and is shared there."""

from __future__ import annotations

import numpy as np
import pytest

from monarch._src.pickling.pickler import dumps, loads
from monarch._src.wire.frames import Payload
from tests.support.payloads import buffers_of

torch = pytest.importorskip("torch")


def over_the_wire(payload: Payload) -> Payload:
    """The same bytes in other memory, writable, as they come off a socket."""
    return Payload(bytes(payload.body), [memoryview(bytearray(b)) for b in buffers_of(payload)])


@pytest.mark.parametrize("loose", [False, True])
def test_a_slice_of_a_tensor_brings_the_span_that_it_uses(loose: bool) -> None:
    whole = torch.arange(1_000_000.0)
    part = whole[1000:1010]
    payload = dumps([part], loose=loose)
    if loose:
        payload = payload.settled()
    assert payload.nbytes < 4000
    (arrived,) = loads(over_the_wire(payload))
    assert torch.equal(arrived, part)
    assert arrived.untyped_storage().nbytes() < 200


def test_views_of_one_message_share_the_span_that_all_of_them_use() -> None:
    whole = torch.arange(1_000_000.0)
    views = [
        whole[5000:9000],
        whole[4000:6000].reshape(2, 1000).T,
        whole[8998:9002:2],
        whole[7000:7000],
        whole.view(torch.int32)[5000:5002],
        torch.nn.Parameter(whole[4001:4003], requires_grad=False),
    ]
    payload = dumps(views)
    assert payload.nbytes < 4 * 6000
    arrived = loads(over_the_wire(payload))
    for one, other in zip(views, arrived, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
        assert one.dtype == other.dtype
    arrived[0][0] = -1.0
    assert arrived[1][0, 1] == -1.0
    assert len({one.untyped_storage().data_ptr() for one in arrived}) == 1


@pytest.mark.parametrize("first", [0, 1])
def test_a_tensor_or_storage_beside_its_slice_brings_all_of_it(first: int) -> None:
    whole = torch.arange(100_000.0)
    for other in (whole, whole.untyped_storage()):
        message = [whole[10:20], other] if first else [other, whole[10:20]]
        arrived = loads(over_the_wire(dumps(message)))
        part = arrived[1 - first] if first == 0 else arrived[0]
        assert torch.equal(part, whole[10:20])
        assert part.untyped_storage().nbytes() == 400_000


def test_what_is_changed_after_the_call_is_not_changed_in_the_span_that_was_sent() -> None:
    whole = torch.ones(100_000)
    payload = dumps([whole[100:50_000]])
    whole.zero_()
    (arrived,) = loads(payload)
    assert arrived.sum() == 49_900


def test_a_slice_of_an_array_brings_its_own_numbers_alone() -> None:
    whole = np.arange(1_000_000.0)
    for part in (whole[1000:1010], whole[::100_000], whole.reshape(1000, 1000)[:3, :3]):
        payload = dumps([part])
        assert payload.nbytes < 4000
        np.testing.assert_array_equal(loads(over_the_wire(payload))[0], part)


@pytest.mark.parametrize("kind", ["sparse", "requires grad", "conj", "subclass"])
def test_other_tensors_that_are_slices_arrive_as_they_are(kind: str) -> None:
    base = torch.arange(100_000.0)
    made = {
        "sparse": base[:100].to_sparse,
        "requires grad": lambda: base[5:10].clone().requires_grad_(),
        "conj": torch.complex(base, base)[5:10].conj,
        "subclass": torch.nn.Parameter(base)[5:10].detach,
    }[kind]()
    (arrived,) = loads(over_the_wire(dumps([made])))
    dense = [t.to_dense() if kind == "sparse" else t for t in (made, arrived)]
    assert torch.equal(*dense)
    assert arrived.requires_grad == made.requires_grad
