"""Tensors: their memory is one buffer, sent once, and shared there where it is shared here."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from typing import Any

import pytest

from monarch._src.pickling.pickler import dumps, loads
from monarch._src.wire.frames import decode, encode
from monarch._src.wire.messages import Call
from monarch._src.wire.segment_refs import SEGMENT_FROM

pytestmark = pytest.mark.slow

torch: Any = pytest.importorskip("torch")

CALL = Call(1, 2, "step", 0, [], [])
MANY = SEGMENT_FROM  # elements: of any type at least as many bytes as travel out of band


def travelled(value: Any) -> Any:
    frames = [memoryview(bytearray(frame)) for frame in encode(CALL, dumps(value))]
    return loads(decode(frames)[1])


def same(arrived: Any, sent: Any) -> bool:
    """Equal in all that a program can see of a tensor."""
    return (
        type(arrived) is type(sent)
        and arrived.dtype is sent.dtype
        and arrived.shape == sent.shape
        and arrived.requires_grad == sent.requires_grad
        and bool(torch.equal(arrived.detach(), sent.detach()))
    )


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "bfloat16", "float16", "int64", "uint8", "bool", "complex64"],
)
@pytest.mark.parametrize("count", [0, 1, 100, MANY])
def test_a_tensor_arrives_equal(dtype: str, count: int) -> None:
    sent = (torch.arange(count) % 2).to(getattr(torch, dtype))
    assert same(travelled(sent), sent)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("count", [0, 1, 100, MANY])
def test_a_tensor_of_the_newer_types_arrives_with_the_same_bytes(dtype: str, count: int) -> None:
    kind = getattr(torch, dtype)
    raw = (torch.arange(count * kind.itemsize) % 100).to(torch.uint8)
    sent = raw.view(kind)
    arrived, parameter = travelled([sent, torch.nn.Parameter(sent, requires_grad=False)])
    assert (arrived.dtype, arrived.shape) == (kind, (count,))
    assert torch.equal(arrived.view(torch.uint8), raw)
    assert arrived.data_ptr() == parameter.data_ptr()


LAYOUTS = {
    "rows": lambda base: base,
    "columns": lambda base: base.t(),
    "strided": lambda base: base[::3, ::2],
    "a row": lambda base: base[5],
    "an element": lambda base: base[3, 4],
    "expanded": lambda base: base[:1].expand(7, -1),
    "empty": lambda base: base[:0],
    "channels last": lambda base: base.view(2, 4, 16, -1).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_of_any_layout_arrives_with_it(layout: str) -> None:
    sent = LAYOUTS[layout](torch.arange(128.0 * 100).view(128, 100))
    arrived = travelled(sent)
    assert same(arrived, sent)
    assert arrived.stride() == sent.stride()


def test_what_torch_knows_of_a_tensor_arrives_with_it() -> None:
    assert same(travelled(torch.ones(MANY, requires_grad=True)), torch.ones(MANY).requires_grad_())
    parameter = torch.nn.Parameter(torch.ones(MANY), requires_grad=False)
    assert same(travelled(parameter), parameter)
    conjugate = (torch.ones(MANY) * (1 + 2j)).conj()
    assert travelled(conjugate).is_conj()
    assert torch.equal(travelled(conjugate).resolve_conj(), conjugate.resolve_conj())
    noted = torch.ones(3)
    noted.note = "kept"
    assert travelled(noted).note == "kept"


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_sparse_tensor_that_came_is_freed() -> None:
    kept: list[Any] = torch._utils._sparse_tensors_to_validate
    before = len(kept)
    for sparse in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()):
        arrived = travelled(sparse)
        assert torch.equal(arrived.to_dense(), torch.eye(3))
        assert len(kept) == before, "torch keeps it for ever"


def test_other_kinds_of_tensor_arrive() -> None:
    dense = torch.eye(200)
    sparse = dense.to_sparse()
    assert torch.equal(travelled(sparse).to_dense(), dense)
    meta = travelled(torch.empty(MANY, device="meta"))
    assert (meta.device.type, meta.shape) == ("meta", (MANY,))


def test_a_large_tensor_is_one_buffer_of_its_size_beside_a_short_pickle() -> None:
    payload = dumps(((torch.ones(MANY),), {}), own=2)
    assert [len(buffer) for buffer in payload.buffers] == [4 * MANY]
    assert len(payload.body) < 500


def test_a_small_tensor_travels_in_the_pickle() -> None:
    payload = dumps(torch.ones(3))
    assert payload.buffers == []
    assert len(payload.body) < len(pickle.dumps(torch.ones(3), 5))


def test_tensors_that_share_memory_share_it_there_and_are_sent_once() -> None:
    base = torch.zeros(2, MANY)
    payload = dumps({"all": base, "rows": [base[0], base[1]], "again": base.t()})
    assert [len(buffer) for buffer in payload.buffers] == [8 * MANY]
    arrived = loads(payload.own())
    arrived["rows"][1][7] = 5
    assert arrived["all"][1, 7] == arrived["again"][7, 1] == 5
    assert arrived["all"].sum() == 5
    assert base.sum() == 0


def test_tensors_that_do_not_share_memory_stay_apart() -> None:
    first, second = travelled([torch.zeros(3), torch.zeros(3)])
    first += 1
    assert second.sum() == 0


def test_the_weights_of_a_model_arrive_and_can_be_trained() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 1))
    arrived = travelled(model)
    for mine, others in zip(model.parameters(), arrived.parameters(), strict=True):
        assert same(others, mine)
    optimizer = torch.optim.SGD(arrived.parameters(), lr=0.1)
    before = arrived[0].weight.clone()
    arrived(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, arrived[0].weight)
    state = travelled(model.state_dict())
    assert list(state) == list(model.state_dict())
    model.load_state_dict(state)


@pytest.mark.parametrize("count", [10, MANY])
def test_what_is_done_to_a_tensor_after_the_call_does_not_change_the_message(count: int) -> None:
    tensor = torch.ones(count)
    payload = dumps(tensor)
    tensor.zero_()
    arrived = loads(payload)
    assert arrived.sum() == count
    arrived += 1
    assert tensor.sum() == 0


def test_storages_themselves_arrive() -> None:
    untyped = torch.arange(5.0).untyped_storage()
    first, second = travelled((untyped, [untyped]))
    assert first is second[0]
    assert first.tolist() == untyped.tolist()


def test_a_storage_arrives_where_torch_was_not_imported_yet() -> None:
    sent = dumps(torch.arange(5.0).untyped_storage())
    program = (
        "import sys; from monarch._src.wire.frames import Payload; "
        "from monarch._src.pickling.pickler import loads; "
        f"print(loads(Payload({bytes(sent.body)!r}, [])).nbytes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "20\n"


def test_a_small_tensor_that_came_can_be_made_larger() -> None:
    arrived = travelled(torch.ones(3))
    arrived.resize_(1000)
    assert arrived[:3].tolist() == [1.0, 1.0, 1.0]


def test_torch_can_save_and_load_what_came() -> None:
    file = io.BytesIO()
    torch.save(travelled(torch.arange(MANY)), file)
    file.seek(0)
    assert torch.equal(torch.load(file), torch.arange(MANY))


READ = """
import sys
from monarch._src.wire.frames import Payload
from monarch._src.pickling.pickler import loads
assert "torch" not in sys.modules
print(loads(Payload(open(sys.argv[1], "rb").read())).tolist())
"""


def test_a_tensor_brings_torch_to_a_process_that_has_not_loaded_it(
    tmp_path: Any, run_python: Any
) -> None:
    (tmp_path / "tensor").write_bytes(dumps(torch.arange(3)).body)
    assert run_python(READ, str(tmp_path / "tensor")) == "[0, 1, 2]\n"
