"""What can be sent: by value as it was at the call, or an error that names the argument."""

from __future__ import annotations

import re
import sys
import threading
import types
from collections import namedtuple
from dataclasses import dataclass
from fractions import Fraction
from types import FunctionType
from typing import Any

import numpy
import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Extent,
    Port,
    ProcMesh,
    ValueMesh,
    endpoint,
    get_or_spawn_controller,
)
from tests.integration.sample_actors import Arrays, Echo


@dataclass
class Pair:
    left: Any
    right: Any


Spot = namedtuple("Spot", ["x", "y"])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(10**40),
        1.5,
        3 + 4j,
        "text with \N{SNOWMAN} and \x00",
        b"",
        b"x" * 5000,
        b"x" * 100_000,
        bytearray(b"y" * 100_000),
        [],
        [1, [2, [3, [4, [5, [6]]]]]],
        {"a": {"b": (1, 2)}, 3: {4}},
        {"many": list(range(1000))},
        Fraction(1, 3),
        Pair(Pair(1, 2), [Spot(3, 4)]),
        Extent(["a"], [2]),
        ValueError("an exception is a value too"),
        int,
        len,
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_value_comes_back_as_it_went(four: ProcMesh, value: Any) -> None:
    echo = four.slice(gpus=0).spawn("echo", Echo)
    back = echo.same.call_one(value).get()
    assert type(back) is type(value)
    assert repr(back) == repr(value)
    args, kwargs = echo.all.call_one(value, key=value).get()
    assert repr((args, kwargs)) == repr(((value,), {"key": value}))


def test_a_value_mesh_can_be_sent_and_comes_back(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    ranks = echo.rank.call().get()
    back = echo.slice(gpus=0).same.call_one(ranks.slice(gpus=slice(1, 3))).get()
    assert isinstance(back, ValueMesh)
    assert back.values() == [1, 2]
    assert back.sizes == {"gpus": 2}


def test_positional_keyword_and_default_arguments_arrive_where_they_belong(four: ProcMesh) -> None:
    echo = four.slice(gpus=0).spawn("echo", Echo)
    assert echo.named.call_one(1).get() == (1, 2, 3)
    assert echo.named.call_one(1, 5).get() == (1, 5, 3)
    assert echo.named.call_one(second=6, first=1).get() == (1, 6, 3)
    assert echo.named.call_one(1, third=7).get() == (1, 2, 7)
    assert echo.all.call_one(*range(50), **{f"k{n}": n for n in range(50)}).get() == (
        tuple(range(50)), {f"k{n}": n for n in range(50)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "Echo.named.*missing a required argument: 'first'"),
        ((1, 2, 3), {}, "Echo.named.*too many positional arguments"),
        ((1,), {"fourth": 4}, "Echo.named.*unexpected keyword argument 'fourth'"),
        ((1,), {"first": 1}, "Echo.named.*multiple values for argument 'first'"),
    ],
)
@pytest.mark.parametrize("adverb", ["call", "choose", "stream", "broadcast"])
def test_arguments_that_do_not_fit_are_a_type_error_at_the_call(
    four: ProcMesh, adverb: str, args: Any, kwargs: Any, said: str
) -> None:
    echo = four.spawn("echo", Echo)
    with pytest.raises(TypeError, match=said):
        getattr(echo.named, adverb)(*args, **kwargs)


class Open(Actor):
    """Takes any names, but for those of its own."""

    @endpoint
    def named(self, **names: int) -> dict[str, int]:
        return names

    @endpoint(explicit_response_port=True)
    def through(self, port: Port[dict[str, int]], **names: int) -> None:
        port.send(names)


@pytest.mark.parametrize("adverb", ["call", "choose", "stream", "broadcast"])
def test_names_that_are_no_callers_are_a_type_error_at_the_call_and_end_nobody(
    four: ProcMesh, adverb: str
) -> None:
    actors = four.spawn("open", Open)
    for found, name in ((actors.named, "self"), (actors.through, "self"), (actors.through, "port")):
        with pytest.raises(TypeError, match=f"multiple values for argument '{name}'"):
            getattr(found, adverb)(**{name: 1})
    one = actors.slice(gpus=0)
    assert one.named.call_one(port=1, args=2).get(timeout=60) == {"port": 1, "args": 2}
    assert one.through.call_one(kwargs=3).get(timeout=60) == {"kwargs": 3}


def test_what_cannot_be_pickled_is_named_by_its_parameter(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    lock = threading.Lock()
    said = "Echo.named: argument {!r} of type lock cannot be sent to another process"
    with pytest.raises(TypeError, match=said.format("second")):
        echo.named.call(1, lock)
    with pytest.raises(TypeError, match=said.format("third")):
        echo.named.broadcast(1, third=lock)
    with pytest.raises(TypeError, match="argument 'first' of type list cannot be sent"):
        echo.named.choose([1, [lock]])
    with pytest.raises(TypeError, match=r"argument 'args\[1\]' of type lock cannot be sent"):
        echo.all.call(1, lock)
    assert echo.rank.call().get().values() == [0, 1, 2, 3]


LOCK = threading.Lock()


class Keeper:
    """Holds something as an attribute."""

    def __init__(self, **kept: Any) -> None:
        self.__dict__.update(kept)

    def method(self) -> None: ...


class Reduces:
    """Says itself how it is pickled, with what is no attribute of it."""

    def __init__(self) -> None:
        self.kept = LOCK

    def __reduce__(self) -> Any:
        return Reduces, (iter([]), lambda: LOCK)


def holds(value: Any) -> Any:
    def function() -> Any:
        return value

    return function


NAMED = [
    ((), {"key": {"deep": [1, (2, LOCK)]}}, "'key' of type dict", "key['deep'][1][1], a lock"),
    (({"a": 1}, [0, {"k": LOCK}]), {}, "'args[1]' of type list", "args[1][1]['k'], a lock"),
    ((1, Keeper(inner=Keeper(lock=LOCK))), {}, "'args[1]' of type Keeper",
     "args[1].inner.lock, a lock"),
    ((), {"key": holds([1, LOCK])}, "'key' of type function", "key, its variable value[1], a lock"),
    ((Keeper(lock=LOCK).method,), {}, "'args[0]' of type method",
     "args[0].__self__.lock, a lock"),
    ((), {"key": (n for n in range(3))}, "'key' of type generator", None),
    ((), {"key": Reduces()}, "'key' of type Reduces", None),
]  # fmt: skip


@pytest.mark.parametrize(("args", "kwargs", "argument", "within"), NAMED, ids=lambda v: str(v)[:30])
def test_what_in_an_argument_cannot_be_sent_is_named_by_the_way_to_it(
    four: ProcMesh, args: Any, kwargs: Any, argument: str, within: str | None
) -> None:
    because = "" if within is None else f", because of {within}"
    said = f": argument {argument} cannot be sent to another process{because}: "
    with pytest.raises(TypeError, match=re.escape("Echo.all" + said)):
        four.spawn("echo", Echo).all.call(*args, **kwargs)
    with pytest.raises(TypeError, match=re.escape("Takes" + said)):
        four.spawn("takes", Takes, *args, **kwargs)
    with pytest.raises(TypeError, match=re.escape("Takes" + said)):
        get_or_spawn_controller("takes", Takes, *args, **kwargs)


class Takes(Actor):
    """Takes anything."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    @endpoint
    def nothing(self) -> None: ...


class TakesNamed(Actor):
    """Takes three."""

    def __init__(self, first: Any, second: Any = 2, *, third: Any = 3) -> None: ...

    @endpoint
    def nothing(self) -> None: ...


def test_what_a_constructor_cannot_be_given_is_named_by_its_parameter(four: ProcMesh) -> None:
    said = "TakesNamed: argument '{}' of type lock cannot be sent to another process: cannot pickle"
    with pytest.raises(TypeError, match=said.format("second")):
        four.spawn("takes", TakesNamed, 1, LOCK)
    with pytest.raises(TypeError, match=said.format("third")):
        four.spawn("takes", TakesNamed, 1, third=LOCK)
    with pytest.raises(TypeError, match=said.format("first")):
        get_or_spawn_controller("takes", TakesNamed, LOCK)


def test_a_class_that_cannot_be_sent_is_named(four: ProcMesh) -> None:
    class Local(Actor):
        lock = LOCK

        @endpoint
        def nothing(self) -> None: ...

    with pytest.raises(TypeError, match=r"Local cannot be sent to another process: .*lock"):
        four.spawn("local", Local)


def uses_it() -> object:
    return LOCK


def test_what_of_a_class_cannot_be_sent_is_named_by_the_way_to_it(
    four: ProcMesh,
) -> None:
    lock, mine = LOCK, globals() | {"__name__": "__main__"}
    helper = FunctionType(uses_it.__code__, mine, "helper")

    class Base:
        def method(self) -> object:
            return Leads, lock  # its own class, too, which leads nowhere

    class Leads(Actor, Base):
        @endpoint
        def nothing(self) -> None: ...

    class Uses(Actor):
        run = helper

        @endpoint
        def nothing(self) -> None: ...

    said = "cannot be sent to another process: {}, a lock: cannot pickle"
    at = "Leads, its base Base.method, its variable lock"
    with pytest.raises(TypeError, match=said.format(at)):
        four.spawn("leads", Leads)
    with pytest.raises(TypeError, match=said.format("Uses.run, which uses LOCK")):
        four.spawn("uses", Uses)


def test_what_is_nested_too_deeply_is_named_too(four: ProcMesh) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(
        TypeError, match=r"Echo.same: argument 'value' of type list .*s: .*recursion"
    ):
        four.spawn("echo", Echo).same.call(deep)


class Refuses:
    def __reduce__(self) -> Any:
        raise RuntimeError("I stay here")


def test_an_object_that_refuses_to_be_pickled_is_named_with_its_reason(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    with pytest.raises(RuntimeError, match=r"'value' of type Refuses .*I stay here") as caught:
        echo.same.call(Refuses())
    assert isinstance(caught.value.__cause__, RuntimeError)


class Closed(LookupError):
    """An error of a library."""


class Picky(Exception):
    """One that cannot be made of a text alone."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class Holds:
    """Raises that when it is pickled."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def __getstate__(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {}


class Giving(Actor):
    """Takes, or gives back, what cannot be pickled."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    @endpoint
    def give(self) -> Holds:
        return Holds(Closed("the store is closed"))


def test_an_error_of_getstate_arrives_as_its_own_type_with_the_runtimes_text(
    four: ProcMesh,
) -> None:
    closed = Holds(Closed("the store is closed"))
    giving = four.spawn("giving", Giving)
    echo = four.spawn("echo", Echo)
    said = "Echo.same: argument 'value' of type Holds cannot be sent .*: the store is closed"
    with pytest.raises(Closed, match=said) as caught:
        echo.same.call(closed)
    assert caught.value.__cause__ is closed.error
    with pytest.raises(Closed, match=r"of type list .* because of value\[1\], a Holds: the store"):
        echo.same.call([1, closed])
    with pytest.raises(Closed, match="Giving: argument 'held' of type Holds cannot be sent"):
        four.spawn("another", Giving, closed)
    with pytest.raises(Closed, match="a Holds cannot be sent to another process: the store"):
        Channel[Any].open()[0].send(closed)
    with pytest.raises(ActorError, match="the value that it returned, a Holds,") as answered:
        giving.give.call().get()
    assert isinstance(answered.value.exception, Closed)


@pytest.mark.parametrize("error", [KeyError("held"), ValueError("no"), AttributeError("missing")])
def test_so_does_one_of_pythons_own_types(four: ProcMesh, error: Exception) -> None:
    with pytest.raises(type(error), match="argument 'value' of type Holds cannot be sent"):
        four.spawn("echo", Echo).same.call(Holds(error))


def test_one_that_cannot_be_made_of_a_text_is_a_type_error_with_the_cause(four: ProcMesh) -> None:
    with pytest.raises(TypeError, match=r"of type Holds cannot be sent .*3: full") as caught:
        four.spawn("echo", Echo).same.call(Holds(Picky(3, "full")))
    assert isinstance(caught.value.__cause__, Picky)


class RefusesToBeRebuilt:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("not on this side")


def test_an_argument_that_cannot_be_rebuilt_is_an_error_of_that_call(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    with pytest.raises(ActorError, match="LookupError: not on this side"):
        echo.same.call(RefusesToBeRebuilt()).get()
    assert echo.rank.call().get().values() == [0, 1, 2, 3]


def test_a_value_that_cannot_be_pickled_on_the_way_back_is_an_error_of_that_call(
    four: ProcMesh,
) -> None:
    echo = four.spawn("echo", Echo)
    with pytest.raises(ActorError, match="value that it returned, a lock, cannot be sent"):
        echo.unpicklable.call().get()
    assert echo.rank.call().get().values() == [0, 1, 2, 3]


def _of_a_module_of_its_rank() -> Any:
    module = types.ModuleType("lab")
    sys.modules["lab"] = module
    module.Thing = type("Thing", (), {"__module__": "lab"})  # type: ignore[attr-defined]
    return {"found": [module.Thing()]}


def _read(echo: Echo, adverb: str, made: Any) -> Any:
    if adverb == "call":
        return echo.apply.call(made).get().item(gpus=1)
    if adverb == "stream":
        return next(echo.slice(gpus=1).apply.stream(made)).get()
    return echo.slice(gpus=1).apply.call_one(made).get()


@pytest.mark.parametrize("adverb", ["call", "call_one", "stream"])
@pytest.mark.parametrize(
    ("made", "says"),
    [
        (
            _of_a_module_of_its_rank,
            (
                "the answer of Echo.apply on workers[gpus=1], which holds lab.Thing, cannot be "
                "rebuilt in this process: ModuleNotFoundError: No module named 'lab'. Make it "
                "importable here too, or return plain data that it consists of"
            ),
        ),
        (
            RefusesToBeRebuilt,
            "cannot be rebuilt in this process: LookupError: not on this side (in _refuse, ",
        ),
    ],
)
def test_an_answer_that_cannot_be_rebuilt_says_whose_it_is_why_and_what_to_do(
    four: ProcMesh, made: Any, says: str, adverb: str
) -> None:
    echo = four.spawn("echo", Echo)
    with pytest.raises(TypeError, match=re.escape(says)):
        _read(echo, adverb, made)
    assert echo.rank.call().get().values() == [0, 1, 2, 3]


async def _coroutine() -> None: ...


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: {"a": [1, threading.Lock()]}, "a dict, .*, because of it['a'][1], a lock: cannot"),
        (lambda: (n for n in range(3)), "an endpoint answers once; return a list of what it"),
        (_coroutine, "a coroutine, .*: await it in an `async def` endpoint"),
    ],
)
def test_what_in_an_answer_cannot_be_sent_is_named_with_what_to_do(
    four: ProcMesh, made: Any, says: str
) -> None:
    error = four.spawn("echo", Echo).slice(gpus=0).apply.call_one(made).exception()
    assert re.search(re.escape(says).replace(r"\.\*", ".*"), str(error))


def test_lambdas_and_closures_travel_by_value(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    added = 40

    def add(number: int) -> int:
        return number + added

    assert echo.apply.call(add, 2).get().values() == [42] * 4
    assert echo.apply.call(lambda *numbers: sum(numbers), 1, 2, 3).get().values() == [6] * 4


# --- arrays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 100, 5_000, 1_000_000])
def test_arrays_arrive_whole_and_writable_and_stay_as_they_were_here(
    four: ProcMesh, count: int
) -> None:
    arrays = four.spawn("arrays", Arrays)
    array = numpy.arange(count, dtype=float)
    expected = float(array.sum()) + count
    for total, writable in arrays.add_one_in_place.call(array).get().values():
        assert (total, writable) == (expected, True)
    assert array.sum() == expected - count


@pytest.mark.parametrize("count", [100, 5_000, 1_000_000])
def test_a_call_sends_what_the_array_was_at_the_call(four: ProcMesh, count: int) -> None:
    arrays = four.spawn("arrays", Arrays)
    array = numpy.zeros(count)
    answers = []
    for _ in range(10):
        answers.append(arrays.total.call(array))
        array += 1
    for number, answer in enumerate(answers):
        assert answer.get().values() == [number * count] * 4


def test_so_does_a_call_to_procs_that_are_not_up_yet(spawn_procs: Any) -> None:
    arrays = spawn_procs({"gpus": 2}).spawn("arrays", Arrays)
    array = numpy.zeros(5_000)
    answer = arrays.total.call(array)
    array += 1
    assert answer.get().values() == [0.0, 0.0]


def test_an_answer_is_what_the_array_was_when_it_was_returned(four: ProcMesh) -> None:
    arrays = four.slice(gpus=0).spawn("arrays", Arrays)
    answers = [arrays.grown.call_one() for _ in range(20)]
    for number, answer in enumerate(answers, start=1):
        found = answer.get()
        assert found.min() == found.max() == number


@pytest.mark.parametrize("count", [3, 5_000])
def test_answers_of_ranks_are_arrays_of_their_own(four: ProcMesh, count: int) -> None:
    total, *others = four.spawn("arrays", Arrays).ones.call(count).get().values()
    for other in others:
        total += other
    assert total.tolist() == [4.0] * count
    assert others[0].tolist() == [1.0] * count


def test_equal_lists_from_several_ranks_are_lists_of_their_own(four: ProcMesh) -> None:
    values = four.spawn("echo", Echo).same.call([1]).get().values()
    values[0].append(2)
    assert values == [[1, 2], [1], [1], [1]]


def test_two_hundred_mebibytes_go_and_come_back(four: ProcMesh) -> None:
    echo = four.slice(gpus=0).spawn("echo", Echo)
    payload = bytes(range(256)) * (200 * 4096)
    assert echo.length.call_one(payload).get(timeout=60) == 200 << 20
    back = echo.same.call_one(payload).get(timeout=60)
    assert back == payload


def test_strided_and_empty_and_zero_dimensional_arrays_arrive(four: ProcMesh) -> None:
    echo = four.slice(gpus=0).spawn("echo", Echo)
    base = numpy.arange(200_000).reshape(400, 500)
    for array in (base[::2, ::3], base.T, base[:0], numpy.array(7), numpy.asfortranarray(base)):
        back = echo.same.call_one(array).get()
        assert back.shape == array.shape
        assert (back == array).all()
        assert back.flags.writeable
