"""Random programs that write to views, and have complex values.

As in `test_random_programs`: values, dtypes, aliasing and gradients are those of one process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import monarch
from monarch.actor import ProcMesh
from tests.integration.tensor.test_random_programs import OPERATIONS, same, steps_of

pytestmark = [
    pytest.mark.slow,
    # Torch warns of some layouts and dims, each once in a process.
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

Step = tuple[str, int, int, int]
Operation = Callable[[Any, Any, int], Any]


def programs(operations: Mapping[str, Operation], size: int) -> Any:
    """Lists of steps."""
    return st.lists(
        st.tuples(
            st.sampled_from(sorted(operations)), st.integers(0, 30), st.integers(0, 30),
            st.integers(0, 5),
        ),
        max_size=size,
    )  # fmt: skip


def run(steps: list[Step], operations: Mapping[str, Operation], leaves: list[Any]) -> list[Any]:
    """All tensors that a program makes; a step that torch refuses makes a copy of a leaf."""
    made = list(leaves)
    for name, first, second, n in steps:
        a, b = made[first % len(made)], made[second % len(made)]
        try:
            made.append(operations[name](a, b, n))
        except (RuntimeError, IndexError, ValueError):
            made.append(leaves[n % len(leaves)].clone())
    return made


def agree(pair: ProcMesh, made: list[Any], expected: list[Any]) -> None:
    for one, other in zip(made, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert steps_of(one) == steps_of(other)
    for rank in range(pair.size()):
        same(monarch.inspect(made, gpus=rank), expected)


# --- indices that are tensors ---------------------------------------------------------------------


def index(a: Any, n: int, axis: int = 0) -> Any:
    """Rows of a tensor, each once."""
    return (torch.arange(max(1, a.shape[axis] - n % 2)) + n) % a.shape[axis]


def flat(a: Any) -> Any:
    return a.reshape(-1)


def numbers() -> list[Any]:
    """The leaves of a program."""
    return [
        torch.arange(6, dtype=dtype).reshape(2, 3) - n
        for n, dtype in enumerate((torch.float32, torch.float64, torch.int64))
    ]


# --- shapes that depend on values -----------------------------------------------------------------

UNKNOWN: dict[str, Callable[[Any], Any]] = {
    "argwhere": torch.argwhere,
    "bincount": lambda a: flat(a).abs().to(torch.int64).bincount(),
    "mask": lambda a: a[a > 1],
    "masked_select": lambda a: a.masked_select(a > 1),
    "nonzero": lambda a: a.nonzero(),
    "nonzero as tuple": lambda a: a.nonzero(as_tuple=True),
    "repeat_interleave": lambda a: flat(a).repeat_interleave(flat(a).abs().to(torch.int64)),
    "truth value": lambda a: a[flat(a).sum() > 1],
    "truth value in a row": lambda a: a.reshape(1, -1)[0, flat(a).sum() > 1],
    "unique": lambda a: a.unique(),
    "unique of rows": lambda a: a.reshape(len(a) if a.dim() else 1, -1).unique(dim=0),
    "unique with counts": lambda a: a.unique(return_counts=True),
    "unique_consecutive": lambda a: a.unique_consecutive(),
    "where": lambda a: torch.where(a > 1),
    "write where": lambda a: a[a > 1].add_(1),
}


@settings(max_examples=60)
@given(steps=programs(OPERATIONS, 8), name=st.sampled_from(sorted(UNKNOWN)), at=st.integers(0, 30))
def test_a_shape_that_depends_on_values_is_refused_at_its_line_and_changes_nothing(
    pair: ProcMesh, steps: list[Step], name: str, at: int
) -> None:
    expected = run(steps, OPERATIONS, numbers())
    with pair.activate():
        made = run(steps, OPERATIONS, numbers())
        with pytest.raises(RuntimeError) as raised:
            UNKNOWN[name](made[at % len(made)])
    assert re.fullmatch(
        rf"the shape of the result of .* at line \d+ of {re.escape(__file__)} \(.*\) depends on "
        r"values .* monarch\.remote\(function, propagate='inspect'\).*",
        str(raised.value), re.DOTALL,
    )  # fmt: skip
    agree(pair, made, expected)


# --- complex values -------------------------------------------------------------------------------


def zero_real(a: Any) -> Any:
    (a.real if a.is_complex() else a).zero_()
    return a


def write(a: Any, n: int) -> Any:
    a[0] = n + 1j if a.is_complex() else n
    return a


COMPLEX: dict[str, Operation] = {
    "add": lambda a, b, n: a + b,
    "multiply": lambda a, b, n: a * b / 8,
    "by a number": lambda a, b, n: a * (n - 1j),
    "divide": lambda a, b, n: a / (n + 2),
    "matmul": lambda a, b, n: a.reshape(1, -1) @ a.reshape(1, -1).mH / 8,
    "conj": lambda a, b, n: a.conj(),
    "adjoint": lambda a, b, n: a.mH if a.dim() > 1 else a.conj(),
    "real": lambda a, b, n: a.real,
    "imag": lambda a, b, n: a.imag,
    "negated": lambda a, b, n: a.conj().imag,
    "as real": lambda a, b, n: torch.view_as_real(a.resolve_conj())[..., n % 2],
    "as complex": lambda a, b, n: torch.view_as_complex(torch.stack([a.real, a.real], -1)),
    "complex": lambda a, b, n: torch.complex(a.real.double(), a.real.double()),
    "polar": lambda a, b, n: torch.polar(a.abs(), a.angle()),
    "abs": lambda a, b, n: a.abs(),
    "sum": lambda a, b, n: a.sum(0, keepdim=True),
    "exp": lambda a, b, n: (a / 16).exp(),
    "vdot": lambda a, b, n: torch.vdot(flat(a), flat(a)) / 8,
    "fft": lambda a, b, n: torch.fft.fft(a),
    "rfft": lambda a, b, n: torch.fft.irfft(torch.fft.rfft(a.real, n=4), n=4),
    "row": lambda a, b, n: a[n % len(a)],
    "slice": lambda a, b, n: a[..., n % 2 :],
    "where": lambda a, b, n: torch.where(a.abs() > n, a, -a),
    "cat": lambda a, b, n: torch.cat([flat(a), flat(b)])[:8],
    "single": lambda a, b, n: a.to(torch.complex64),
    "add_": lambda a, b, n: a.add_(n),
    "mul_": lambda a, b, n: a.mul_(1j),
    "conj_": lambda a, b, n: a.conj_physical_(),
    "copy_": lambda a, b, n: a.copy_(b.clone() if a.is_complex() else b.abs()),
    "zero the real part": lambda a, b, n: zero_real(a),
    "write": lambda a, b, n: write(a, n),
    "clone": lambda a, b, n: a.clone(),
}


def complex_numbers() -> list[Any]:
    """The leaves of a program."""
    x = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    return [torch.complex(x, x - 2), torch.complex(x.float(), -x.float()), x - 3]


@settings(max_examples=60)
@given(steps=programs(COMPLEX, 15))
def test_complex_programs_have_the_values_of_one_process(pair: ProcMesh, steps: list[Step]) -> None:
    expected = run(steps, COMPLEX, complex_numbers())
    with pair.activate():
        made = run(steps, COMPLEX, complex_numbers())
    for one, other in zip(made, expected, strict=True):
        assert (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
    agree(pair, made, expected)


@settings(max_examples=30)
@given(steps=programs(COMPLEX, 12), written=st.integers(0, 30))
def test_complex_views_share_memory_as_in_one_process(
    pair: ProcMesh, steps: list[Step], written: int
) -> None:
    expected = run(steps, COMPLEX, complex_numbers())
    with pair.activate():
        made = run(steps, COMPLEX, complex_numbers())
        made[written % len(made)].zero_()
    expected[written % len(expected)].zero_()
    same(monarch.inspect(made, gpus=0), expected)


# --- writes to views that have gradients ----------------------------------------------------------


def put_with_gradient(a: Any, b: Any, n: int) -> Any:
    a[index(a, n)] = b.sum() * n
    return a


WRITES: dict[str, Operation] = {
    "row": lambda a, b, n: a[n % len(a)],
    "transposed": lambda a, b, n: a.t(),
    "columns": lambda a, b, n: a[..., n % 2 :],
    "flat": lambda a, b, n: a.view(-1),
    "expanded": lambda a, b, n: a.unsqueeze(0),
    "split": lambda a, b, n: a.split(1)[0],
    "picked": lambda a, b, n: a[index(a, n)],
    "diagonal": lambda a, b, n: a.diagonal(),
    "square": lambda a, b, n: a * a,
    "sin": lambda a, b, n: a.sin(),
    "product": lambda a, b, n: a * b.mean(),
    "detached": lambda a, b, n: a.detach().clone(),
    "mul_": lambda a, b, n: a.mul_(n / 2),
    "add_": lambda a, b, n: a.add_(b.sum()),
    "tanh_": lambda a, b, n: a.tanh_(),
    "clamp_": lambda a, b, n: a.clamp_(-n, n),
    "copy_": lambda a, b, n: a.copy_(b.clone() * 2),
    "fill_": lambda a, b, n: a.fill_(n),
    "masked_fill_": lambda a, b, n: a.masked_fill_(a.detach() > n / 2, 0.5),
    "index_add_": lambda a, b, n: a.index_add_(0, index(a, n), a[index(a, n)].cos()),
    "put": put_with_gradient,
    "addcmul_": lambda a, b, n: a.addcmul_(a.detach().clone(), b.clone()),
}


def gradients(steps: list[Step], operations: Mapping[str, Operation]) -> list[Any] | str:
    """The gradients of all that a program makes of two matrices, or the begin of an error."""
    leaves = [
        (torch.arange(6.0, dtype=torch.float64).reshape(2, 3) / 6 - n / 3).requires_grad_()
        for n in range(2)
    ]
    made = run(steps, operations, [leaf * 1 for leaf in leaves])
    try:
        total: Any = sum(one.sum() for one in made)
        total.backward()
    except RuntimeError as error:
        return str(error)[:60]
    return [leaf.grad for leaf in leaves]


@settings(max_examples=80)
@given(steps=programs(WRITES, 12))
def test_gradients_pass_writes_to_views_as_in_one_process(
    pair: ProcMesh, steps: list[Step]
) -> None:
    expected = gradients(steps, WRITES)
    with pair.activate():
        made = gradients(steps, WRITES)
    if isinstance(expected, str):
        assert made == expected
    else:
        assert not isinstance(made, str), made
        same(monarch.inspect(made, gpus=1), expected)
