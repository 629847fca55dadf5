"""The shards of a tensor, as `%monarch show` draws them."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from typing import Any

import pytest

from monarch.frontend import Coordinates
from monarch_jupyter.ranks.shard import MOST_COLUMNS, MOST_ROWS, Shard, summarize
from monarch_jupyter.rendering.shards import MOST_SHOWN, NOT_FINITE, ShardsView, colour, png_address

PLACES = Coordinates.own({"gpus": 4})


def shard(*rows: tuple[float, ...], odd: int = 0) -> Shard:
    values = [value for row in rows for value in row if math.isfinite(value)]
    mean = sum(values) / len(values)
    contents = f"{zlib.crc32(repr(rows).encode()):08x}"
    size = len(rows), len(rows[0])
    return Shard(size, "float32", "cpu", min(values), mean, max(values), odd, rows, contents)


def decoded(address: str) -> list[list[tuple[int, int, int]]]:
    """The pixels of a PNG that `png_address` has made."""
    data = base64.b64decode(address.partition(",")[2])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, body = 8, b""
    width = height = 0
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        assert check == zlib.crc32(kind + content)
        if kind == b"IHDR":
            width, height, depth, colours = struct.unpack(">IIBB", content[:10])
            assert (depth, colours) == (8, 2)
        body += content if kind == b"IDAT" else b""
        at += 12 + size
    lines, step = zlib.decompress(body), 1 + 3 * width
    rows = [lines[n * step + 1 : (n + 1) * step] for n in range(height)]
    return [[(r[3 * x], r[3 * x + 1], r[3 * x + 2]) for x in range(width)] for r in rows]


def test_equal_shards_share_a_line() -> None:
    one, other = shard((1.0, 2.0)), shard((3.0, math.nan), odd=1)
    view = ShardsView(
        "monarch.Tensor [1, 2] float32 on w {gpus: 4}", [one, other, one, other], PLACES
    )
    assert repr(view).splitlines() == [
        "monarch.Tensor [1, 2] float32 on w {gpus: 4}",
        "  ranks     lowest  mean  highest  not finite",
        "  gpus=0,2  1       1.5   2        0",
        "  gpus=1,3  3       3     3        1",
    ]


def test_shards_with_equal_figures_and_other_contents_are_told_apart() -> None:
    parts = [
        Shard((96, 200), "float32", "cpu", 0.0, 0.5, 1.0, 0, ((0.5,),), contents)
        for contents in ("0a", "0b", "0a", "0b")
    ]
    view = ShardsView("t", parts, PLACES)
    assert repr(view).splitlines()[1:] == [
        "  ranks     lowest  mean  highest  not finite  contents",
        "  gpus=0,2  0       0.5   1        0           0a",
        "  gpus=1,3  0       0.5   1        0           0b",
    ]
    assert view._repr_html_().count("<img") == 2
    assert "contents" in view._repr_html_()


def test_pictures_of_all_ranks_have_one_scale() -> None:
    shown = ShardsView("t", [shard((0.0, 1.0)), shard((9.0, 10.0))], PLACES)._repr_html_()
    assert shown.count("<img") == 2
    assert png_address(((0.0, 1.0),), 0.0, 10.0) in shown
    assert png_address(((9.0, 10.0),), 0.0, 10.0) in shown
    assert "dark: 0, light: 10" in shown
    assert "elements at gpus=0" in shown


def test_a_picture_of_one_column_is_no_higher_than_others() -> None:
    column = shard(*((float(row),) for row in range(MOST_ROWS)))
    shown = ShardsView("t", [column], PLACES)._repr_html_()
    assert 'width="24" height="96"' in shown


def test_what_a_picture_leaves_out_is_said() -> None:
    blocks = Shard((96, 200), "float32", "cpu", 0.0, 0.5, 1.0, 2, ((0.0, math.nan),), "")
    shown = ShardsView("<b>", [blocks], PLACES)._repr_html_()
    assert "red: not finite" in shown
    assert "a pixel is the mean of a block" in shown
    assert "&lt;b&gt;" in shown


def test_many_different_shards_are_counted() -> None:
    count = MOST_SHOWN + 3
    shards = [shard((float(rank),)) for rank in range(count)]
    view = ShardsView("t", shards, Coordinates.own({"gpus": count}))
    assert repr(view).endswith("\n  and 3 more")
    assert "and 3 more" in view._repr_html_()


def test_a_picture_has_a_pixel_for_each_number() -> None:
    rows = [(0.0, 5.0, 10.0), (math.nan, math.inf, 10.0)]
    assert decoded(png_address(rows, 0.0, 10.0)) == [
        [colour(0.0, 0.0, 10.0), colour(5.0, 0.0, 10.0), colour(10.0, 0.0, 10.0)],
        [NOT_FINITE, NOT_FINITE, colour(10.0, 0.0, 10.0)],
    ]
    assert sum(colour(0.0, 0.0, 1.0)) < sum(colour(0.5, 0.0, 1.0)) < sum(colour(1.0, 0.0, 1.0))
    assert colour(7.0, 7.0, 7.0) == colour(0.5, 0.0, 1.0)


@pytest.mark.slow
class TestSummaries:
    """What ranks compute."""

    @staticmethod
    def of(make: str) -> Shard:
        torch: Any = pytest.importorskip("torch", reason="ranks compute with it")
        return summarize(eval(make, {"torch": torch, "nan": math.nan, "inf": math.inf}))

    def test_figures_leave_out_what_is_not_finite(self) -> None:
        found = self.of("torch.tensor([[1.0, nan], [3.0, -inf]])")
        assert (found.low, found.mean, found.high, found.odd) == (1.0, 2.0, 3.0, 2)
        assert found.picture[0][0] == 1.0
        assert [math.isnan(row[1]) for row in found.picture] == [True, True]

    @pytest.mark.parametrize(
        ("make", "size"),
        [
            ("torch.ones(())", (1, 1)),
            ("torch.ones(5)", (1, 5)),
            ("torch.ones(2, 3, 4)", (6, 4)),
            ("torch.ones(1000, 1000)", (MOST_ROWS, MOST_COLUMNS)),
            ("torch.ones(3, 1000)", (3, MOST_COLUMNS)),
        ],
    )
    def test_a_picture_is_small(self, make: str, size: tuple[int, int]) -> None:
        found = self.of(make)
        assert (len(found.picture), len(found.picture[0])) == size
        assert {value for row in found.picture for value in row} == {1.0}

    @pytest.mark.parametrize(
        ("make", "high"),
        [
            ("torch.tensor([True, False])", 1.0),
            ("torch.arange(4, dtype=torch.uint8)", 3.0),
            ("torch.tensor([3 + 4j])", 5.0),
            ("torch.ones(2, dtype=torch.bfloat16, requires_grad=True)", 1.0),
            ("torch.ones(2).to(torch.float8_e4m3fn)", 1.0),
        ],
    )
    def test_every_kind_of_number_is_summarized(self, make: str, high: float) -> None:
        assert self.of(make).high == high

    @pytest.mark.parametrize(
        ("make", "other"),
        [
            ("torch.arange(40000.0).reshape(200, 200)", "torch.arange(40000.0).reshape(200, 200)"),
            ("torch.ones(3, 2)[:, 0]", "torch.ones(3)"),
            ("torch.tensor([1 + 1j]).conj()", "torch.tensor([1 - 1j])"),
        ],
    )
    def test_equal_contents_have_equal_digests(self, make: str, other: str) -> None:
        assert self.of(make).contents == self.of(other).contents

    @pytest.mark.parametrize(
        ("make", "other"),
        [
            # Within one block of the picture, by sign of a complex number, by kind of infinity.
            ("torch.eye(200)[::2] * torch.eye(200)[::2]", "torch.eye(200)[1::2]"),
            ("torch.tensor([1j])", "torch.tensor([-1j])"),
            ("torch.tensor([inf, 1])", "torch.tensor([nan, 1])"),
            ("torch.tensor([2**60])", "torch.tensor([2**60 + 1])"),
        ],
    )
    def test_other_contents_have_other_digests(self, make: str, other: str) -> None:
        assert self.of(make).contents != self.of(other).contents

    @pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float8_e5m2", "complex64", "int8"])
    def test_a_large_shard_of_any_dtype_has_a_digest(self, dtype: str) -> None:
        found = self.of(f"torch.ones(2100, 2100).to(torch.{dtype})")
        assert len(found.contents) == 8

    def test_without_elements_there_is_no_picture(self) -> None:
        found = self.of("torch.empty(0, 3)")
        assert (found.low, found.odd, found.picture) == (None, 0, ())
        assert "no elements" in ShardsView("t", [found], PLACES)._repr_html_()
