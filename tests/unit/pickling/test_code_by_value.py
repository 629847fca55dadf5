"""Classes, wrappers and names of types that travel by value: what they are in another process."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._src.pickling import class_objects
from monarch._src.pickling.class_objects import known
from monarch._src.pickling.pickler import dumps, loads

# Two processes: one pickles what the text defines, one unpickles and says what it finds.
SEND = """
import pickle, sys
from monarch._src.pickling.pickler import dumps

def send(*values, defines=False):
    payload = dumps(values, defines=defines)
    assert not payload.buffers
    pickle.dump(payload.body, sys.stdout.buffer)
"""
FUTURE = "from __future__ import annotations\n"
RECEIVE = """
import pickle, sys
from monarch._src.pickling import main_names
from monarch._src.wire.frames import Payload
from monarch._src.pickling.pickler import loads
main_names.begin()

def receive():
    return loads(Payload(pickle.load(sys.stdin.buffer)))
"""


@pytest.fixture
def arrives(tmp_path: Path) -> Callable[[str, str], str]:
    """What a process prints that runs the second text, to which the first one has sent."""

    def run(sender: str, receiver: str) -> str:
        def python(name: str, text: str, given: bytes) -> bytes:
            file = tmp_path / name
            file.write_text(text)
            path = os.pathsep.join(p for p in sys.path if p)
            done = subprocess.run(
                [sys.executable, "-W", "error", str(file)],
                input=given,
                capture_output=True,
                env={**os.environ, "PYTHONPATH": path},
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr.decode()
            return done.stdout

        body = textwrap.dedent(sender)
        if FUTURE in body:
            body = FUTURE + SEND + body.replace(FUTURE, "")
        sent = python("sender.py", body if body.startswith(FUTURE) else SEND + body, b"")
        return python("receiver.py", RECEIVE + textwrap.dedent(receiver), sent).decode().strip()

    return run


# --- classes: what a definition consists of -------------------------------------------------------

KINDS = {
    "slots": (
        (
            "class C:\n    __slots__ = ('a', '__b')\n"
            "    def __init__(self):\n        self.a, self.__b = 1, 2\n"
            "    def both(self): return self.a, self.__b"
        ),
        "(hasattr(C(), '__dict__'), C().both())",
        "(False, (1, 2))",
    ),
    "slots of a base": (
        "class B:\n    __slots__ = ('a',)\nclass C(B):\n    __slots__ = ()",
        "(hasattr(C(), '__dict__'), C.__bases__[0].__slots__)",
        "(False, ('a',))",
    ),
    "dataclass with slots": (
        (
            "import dataclasses\n@dataclasses.dataclass(slots=True, frozen=True)\nclass C:\n"
            "    a: int = 1\n    b: list = dataclasses.field(default_factory=list)"
        ),
        "(C(), C() == C(1), hasattr(C(), '__dict__'))",
        "(C(a=1, b=[]), True, False)",
    ),
    "sentinels of dataclasses": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    a: int",
        "__import__('dataclasses').fields(C)[0].default is __import__('dataclasses').MISSING",
        "True",
    ),
    "named tuple": (
        "import typing\nclass C(typing.NamedTuple):\n    a: int\n    b: int = 2",
        "(C(1), C(1)._replace(b=3))",
        "(C(a=1, b=2), C(a=1, b=3))",
    ),
    "enum with constructor and alias": (
        (
            "import enum\nran = []\n"
            "class C(enum.Enum):\n    A = 1, 2\n    ALIAS = 1, 2\n    B = 3\n"
            "    def __init__(self, *a):\n        global ran\n        ran.append(a)\n"
            "    def made(self): return len(ran)"
        ),
        "([m.name for m in C], C.ALIAS is C.A, C((1, 2)) is C.A, C['B'].value, C.A.made())",
        "(['A', 'B'], True, True, 3, 3)",
    ),
    "enum of a builtin type": (
        "import enum\nclass C(str, enum.Enum):\n    A = 'a'",
        "(C.A == 'a', C.A + 'b', C('a') is C.A, isinstance(C.A, str))",
        "(True, 'ab', True, True)",
    ),
    "flag": (
        "import enum\nclass C(enum.Flag):\n    R = 1\n    W = 2\n    RW = 3",
        "(C.R | C.W is not None, (C.R | C.W) is C.RW, C.R in C.RW, C(0).value)",
        "(True, True, True, 0)",
    ),
    "abstract class": (
        (
            "import abc\nclass B(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...\n"
            "@B.register\nclass Other: pass\nclass C(B):\n    base, other = B, Other\n"
            "    def f(self): return 1"
        ),
        "(C().f(), issubclass(C.other, C.base), *C.base.__abstractmethods__)",
        "(1, True, 'f')",
    ),
    "protocol": (
        (
            "import typing\n@typing.runtime_checkable\nclass C(typing.Protocol):\n"
            "    def close(self) -> None: ..."
        ),
        "(isinstance(sys.stdin, C), isinstance(1, C))",
        "(True, False)",
    ),
    "generic": (
        "from typing import *\nT = TypeVar('T')\nclass B(Generic[T]): pass\nclass C(B[int]): pass",
        "(C.__orig_bases__[0].__args__, C.__bases__[0].__parameters__[0].__name__)",
        "((<class 'int'>,), 'T')",
    ),
    "super and __class__": (
        (
            "class B:\n    def f(self): return 1\nclass C(B):\n"
            "    def f(self): return super().f() + 1, __class__.__name__"
        ),
        "C().f()",
        "(2, 'C')",
    ),
    "properties of other classes": (
        "class Mine(property):\n    pass\nclass C:\n    p = Mine(lambda self: 5)\n    kind = Mine",
        "(C().p, type(vars(C)['p']) is C.kind)",
        "(5, True)",
    ),
    "structure of ctypes": (
        (
            "import ctypes\nclass C(ctypes.Structure):\n    _pack_ = 1\n    _layout_ = 'ms'\n"
            "    _fields_ = [('x', ctypes.c_char), ('y', ctypes.c_int)]"
        ),
        "(__import__('ctypes').sizeof(C), C(b'a', 3).y)",
        "(5, 3)",
    ),
    "exception": (
        (
            "class C(Exception):\n    def __init__(self, a, b):\n        super().__init__(a, b)\n"
            "        self.a, self.b = a, b"
        ),
        "(C(1, 2).b, C(1, 2).args)",
        "(2, (1, 2))",
    ),
    "builtin base": (
        "class C(dict):\n    def __missing__(self, key): return key",
        "(C(a=1)['a'], C()['b'])",
        "(1, 'b')",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_is_there_what_it_is_here(arrives: Callable[[str, str], str], kind: str) -> None:
    definition, asked, answer = KINDS[kind]
    assert arrives(f"\n{definition}\nsend(C)", f"\nC, = receive()\nprint({asked})") == answer


# --- classes: no hook runs, and nothing is set back -----------------------------------------------

HOOKS = """
    import abc, enum
    ran = []
    class Names:
        def __set_name__(self, owner, name): ran.append(('set_name', name))
    class Meta(abc.ABCMeta):
        @classmethod
        def __prepare__(cls, name, bases, **options):
            ran.append(('prepare', name))
            return {}
        def __new__(cls, name, bases, namespace, **options):
            ran.append(('new', name))
            return super().__new__(cls, name, bases, namespace, **options)
        def __init__(self, name, bases, namespace, **options):
            ran.append(('init', name))
            super().__init__(name, bases, namespace)
        def __setattr__(self, name, value):
            ran.append(('setattr', name))
            super().__setattr__(name, value)
    class Base(metaclass=Meta):
        __slots__ = ()
        def __init_subclass__(cls, *, needed, **options):
            ran.append(('init_subclass', cls.__name__))
            super().__init_subclass__(**options)
    class C(Base, needed=1):
        attribute = Names()
        def told(self): return list(ran)
    class Counted(enum.Enum):
        ONE = 1
        def __init__(self, value): ran.append(('member', value))
        def told(self): return list(ran)
"""


def test_no_hook_of_a_class_runs_where_it_comes(arrives: Callable[[str, str], str]) -> None:
    told = arrives(
        HOOKS + "    send(C, Counted, list(ran))",
        "C, Counted, ran = receive()\nprint(C().told() == ran == Counted.ONE.told(), len(ran))",
    )
    assert told == "True 13"  # as many as ran where the class statements did


@functools.cache
def imported_wrapper() -> int:
    """A wrapper of a module."""
    return 1


class Held:
    """What a class of a cell holds on to, which this module knows by name."""


def of_a_cell(text: str, **names: Any) -> dict[str, Any]:
    """The names that a cell has bound."""
    bound = {"__name__": "__main__", **names}
    exec(textwrap.dedent(text), bound)
    return bound


CACHE = """
    class Cache:
        entries = {}
        hits = 0
        limit = 3
        def f(self): return 1
"""


@pytest.fixture
def two_sides() -> Iterator[Callable[..., Any]]:
    """Takes the bytes of a message, and unpickles them as a process that has made no class.

    The tables of this process are put aside meanwhile, those of the other are kept for its next.
    """
    from monarch._src.pickling import class_objects

    tables = class_objects._by_thing, class_objects._by_identity
    there: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
    track = class_objects._track_there
    class_objects._track_there = None

    def receive(value: Any, **options: Any) -> Any:
        payload = dumps(value, **options)
        class_objects._by_thing, class_objects._by_identity = there
        try:
            return loads(payload)
        finally:
            class_objects._by_thing, class_objects._by_identity = tables

    yield receive
    class_objects._track_there = track


def test_what_a_process_has_assigned_to_a_class_stays_whatever_comes(
    two_sides: Callable[..., Any],
) -> None:
    here = of_a_cell(CACHE)["Cache"]
    there = two_sides(here)
    assert there is not here
    there.entries["a"], there.hits, there.own = 1, 5, "own"
    here.limit = 4
    for value in (here(), here, [here, here()]):
        two_sides(value)
        two_sides(value, defines=True)
    assert (there.entries, there.hits, there.own) == ({"a": 1}, 5, "own")
    assert type(two_sides(here())) is there


def test_only_a_message_that_defines_brings_a_changed_definition(
    two_sides: Callable[..., Any],
) -> None:
    here = of_a_cell(CACHE)["Cache"]
    there = two_sides(here)
    f = there.f
    two_sides(here, defines=True)
    assert there.f is f  # it is the same definition
    here.f, here.limit, here.added = lambda self: 2, 4, 7
    del here.hits
    two_sides(here)
    assert (there().f(), there.limit, there.hits, hasattr(there, "added")) == (1, 3, 0, False)
    there.entries["a"] = 1
    two_sides(here, defines=True)
    assert (there().f(), there.limit, there.added, there.entries) == (2, 4, 7, {"a": 1})
    assert not hasattr(there, "hits")


def test_what_a_process_has_bound_itself_is_not_redefined(two_sides: Callable[..., Any]) -> None:
    here = of_a_cell(CACHE)["Cache"]
    there = two_sides(here)
    there.limit, there.f = 30, lambda self: "own"
    here.limit, here.f = 4, lambda self: 2
    two_sides(here, defines=True)
    assert (there.limit, there().f()) == (30, "own")


USES = """
    rate = 0.1
    count = 0
    def helper(): return rate
    class Uses:
        def f(self): return helper()
        def g(self):
            global count
            count += 1
            return count
"""


@pytest.mark.parametrize(
    ("change", "expected"),
    [("def helper(): return 2", 2), ("rate = 0.2", 0.2), ("def helper(): return rate * 2", 0.2)],
)
def test_a_definition_has_changed_if_what_it_uses_has(
    two_sides: Callable[..., Any], change: str, expected: float
) -> None:
    names = of_a_cell(USES)
    there = two_sides(names["Uses"])
    there().g()
    two_sides(names["Uses"], defines=True)
    assert there().g() == 2  # the same definition: its globals are as they were
    exec(change, names)
    two_sides(names["Uses"])
    assert there().f() == 0.1
    two_sides(names["Uses"], defines=True)
    assert there().f() == expected


USES_STATE = """
    seen = {"runs": [1, 2], "kind": None}
    names = ["a"]
    class Uses:
        def add(self, name, into=[]):
            names.append(name)
            into.append(name)
            seen["last"] = name
            return len(names), len(into)
"""


def test_a_mutable_global_is_no_change_until_its_sender_has_changed_it(
    two_sides: Callable[..., Any],
) -> None:
    names = of_a_cell(USES_STATE)
    there = two_sides(names["Uses"])
    assert there().add("b") == (2, 1)
    for _ in range(2):
        two_sides(names["Uses"], defines=True)
    assert there().add("c") == (3, 2)  # what this process has added is there
    names["seen"]["runs"].append(3)
    two_sides(names["Uses"])
    assert there().add("d") == (4, 3)
    two_sides(names["Uses"], defines=True)
    assert there().add("e") == (2, 1)  # a new definition, with globals of its own


@pytest.mark.parametrize(
    "change", ["seen['kind'] = 0", "seen['runs'] = (1, 2)", "names = {'a'}", "names[0] = b'a'"]
)
def test_a_container_has_changed_with_the_type_of_what_it_holds(
    two_sides: Callable[..., Any], change: str
) -> None:
    names = of_a_cell(USES_STATE)
    add = two_sides(names["Uses"]).add
    exec(change, names)
    assert two_sides(names["Uses"], defines=True).add is not add


def test_a_class_that_comes_home_is_the_one_that_left(two_sides: Callable[..., Any]) -> None:
    here = of_a_cell(CACHE)["Cache"]
    back = loads(dumps([here, here()], defines=True))
    assert back[0] is here
    assert type(back[1]) is here
    assert known(here).filled


def test_a_class_that_came_is_kept_by_nothing_of_the_runtime(two_sides: Callable[..., Any]) -> None:
    import gc

    there = weakref.ref(two_sides(of_a_cell(USES)["Uses"]))
    gc.collect()
    assert there() is None


def test_a_class_that_only_its_statement_can_make_is_refused() -> None:
    names = of_a_cell("import msgspec\nclass Point(msgspec.Struct):\n    x: int")
    with pytest.raises(TypeError, match=r"class 'Point', .* put it into a module .* or use a data"):
        dumps(names["Point"])


def test_the_way_to_make_a_class_without_its_hooks_leaves_nothing_behind() -> None:
    bases = of_a_cell("class Base:\n    def __init_subclass__(cls): raise RuntimeError('it ran')")
    made = class_objects._bare(type, "Made", (bases["Base"],), {"__module__": "__main__"})
    assert made.__mro__ == (made, bases["Base"], object)
    assert set(vars(made)) == {"__module__", "__dict__", "__weakref__", "__doc__"} - (
        {"__dict__", "__weakref__"}  # the base has them
    )


# --- wrappers and names of types ------------------------------------------------------------------

WRAPPED = {
    "lru_cache": (
        (
            "import functools\n@functools.lru_cache(maxsize=7, typed=True)\n"
            "def f(n): return n if n < 2 else f(n - 1) + f(n - 2)"
        ),
        "(f(20), f.cache_parameters(), f.__name__, f.cache_info().currsize > 0)",
        "(6765, {'maxsize': 7, 'typed': True}, 'f', True)",
    ),
    "cache of a method": (
        "import functools\nclass f:\n    @functools.cache\n    def m(self, n): return n * 2",
        "f().m(2)",
        "4",
    ),
    "cached_property": (
        "import functools\nclass f:\n    @functools.cached_property\n    def p(self): return [1]",
        "(lambda o: (o.p is o.p, f.p.attrname))(f())",
        "(True, 'p')",
    ),
    "singledispatch": (
        (
            "import functools\nclass Own: pass\n@functools.singledispatch\ndef f(x): return 'any'\n"
            "@f.register\ndef _(x: int): return 'int'\n@f.register\ndef _(x: Own): return 'own'\n"
            "f.own = Own"
        ),
        "(f(''), f(1), f(f.own()), f.dispatch(bool)(True), f.__name__)",
        "('any', 'int', 'own', 'int', 'f')",
    ),
    "singledispatchmethod": (
        (
            "import functools\nclass f:\n    @functools.singledispatchmethod\n    def m(self, x):\n"
            "        return 'any'\n    @m.register\n    def _(self, x: int): return 'int'"
        ),
        "(f().m(''), f().m(1))",
        "('any', 'int')",
    ),
    "partialmethod": (
        (
            "import functools\nclass f:\n    def m(self, a, b): return a - b\n"
            "    n = functools.partialmethod(m, 5)"
        ),
        "f().n(2)",
        "3",
    ),
    "contextmanager": (
        "import contextlib\n@contextlib.contextmanager\ndef f(): yield 5",
        "f().__enter__()",
        "5",
    ),
    "weak reference": (
        (
            "import weakref\nclass Node:\n    def __init__(self): self.child = None\nf = Node()\n"
            "f.child = Node()\nf.child.parent = weakref.ref(f)\nf.dead = weakref.ref(Node())"
        ),
        "(f.child.parent() is f, f.dead())",
        "(True, None)",
    ),
    "weak method": (
        (
            "import weakref\nclass Node:\n    def m(self): return 3\nf = Node()\n"
            "f.call = weakref.WeakMethod(f.m)"
        ),
        "f.call()()",
        "3",
    ),
    "weak tables": (
        (
            "import weakref\nclass Node: pass\nf = Node()\n"
            "f.k = weakref.WeakKeyDictionary({f: 1})\n"
            "f.v = weakref.WeakValueDictionary({'a': f})\nf.s = weakref.WeakSet([f])"
        ),
        "(f.k[f], f.v['a'] is f, f in f.s)",
        "(1, True, True)",
    ),
    "variables that functions share": (
        (
            "def make():\n    n = 0\n    def add():\n        nonlocal n\n"
            "        n += 1\n        return n\n"
            "    def get(): return n\n    return add, get\nf = make()"
        ),
        "(f[0](), f[0](), f[1]())",
        "(1, 2, 2)",
    ),
    "a new type as annotation": (
        "import typing\nUserId = typing.NewType('UserId', int)\ndef f(x: UserId): return UserId(x)",
        "(f(3), f.__annotations__['x'].__name__, f.__annotations__['x'].__supertype__)",
        "(3, 'UserId', <class 'int'>)",
    ),
    "a parameter specification as annotation": (
        (
            "import typing\nP = typing.ParamSpec('P')\n"
            "def f(g: typing.Callable[P, int], *a: P.args): return 1"
        ),
        "(f(1), f.__annotations__['a'].__origin__.__name__)",
        "(1, 'P')",
    ),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_what_the_standard_library_wraps_works_there(
    arrives: Callable[[str, str], str], kind: str
) -> None:
    definition, asked, answer = WRAPPED[kind]
    assert arrives(f"\n{definition}\nsend(f)", f"\nf, = receive()\nprint({asked})") == answer


@pytest.mark.parametrize("kind", WRAPPED)
def test_it_works_as_a_global_of_a_function_too(
    arrives: Callable[[str, str], str], kind: str
) -> None:
    definition, asked, answer = WRAPPED[kind]
    sender = f"\n{definition}\ndef uses(): return f\nsend(uses)"
    assert arrives(sender, f"\nuses, = receive()\nf = uses()\nprint({asked})") == answer


@pytest.mark.parametrize(
    "made",
    ["NewType('Name', int)", "TypeVar('Name', bound=int)", "ParamSpec('Name')"],
)
def test_the_name_of_a_type_is_one_thing_in_all_messages(
    two_sides: Callable[..., Any], made: str
) -> None:
    name = of_a_cell(f"from typing import *\nName = {made}")["Name"]
    there = two_sides(name)
    assert there is not name
    assert two_sides([name])[0] is there
    assert loads(dumps([name]))[0] is name


def test_the_cache_of_the_sender_is_as_it_was() -> None:
    names = of_a_cell("import functools\n@functools.cache\ndef f(n): return n\nf(1)")
    there = loads(dumps(names["f"]))
    assert names["f"].cache_info().currsize == 1
    assert there.cache_info().currsize == 0


def test_a_wrapper_that_can_be_imported_travels_as_its_name() -> None:
    assert loads(dumps([os.path.expandvars, imported_wrapper]))[1] is imported_wrapper


SINGLETON = """
    class Single:
        def __reduce__(self): return "THE_ONE"
    THE_ONE = Single()
"""


def test_what_goes_by_a_name_of_main_alone_is_refused_where_it_is_sent() -> None:
    names = of_a_cell(SINGLETON)
    with pytest.raises(TypeError, match=r"'THE_ONE', a Single pickled as a name in `__main__`"):
        dumps([names["THE_ONE"]])


@pytest.mark.parametrize("made", ["weakref.proxy(Held)", "weakref.finalize(Held, print)"])
def test_what_only_its_process_can_have_is_refused(made: str) -> None:
    thing = eval(made, {"weakref": weakref, "Held": Held})
    with pytest.raises(TypeError, match="cannot pickle"):
        dumps(thing)
    if isinstance(thing, weakref.finalize):
        thing.detach()


# --- names in __main__ ----------------------------------------------------------------------------


def test_what_comes_is_found_under_its_name_in_main(arrives: Callable[[str, str], str]) -> None:
    told = arrives(
        """
        from __future__ import annotations
        import enum, functools, typing
        from typing import Optional
        class Model: pass
        class Holder:
            model: Model
            maybe: Optional[int]
        class Outer:
            class Inner: pass
        class Color(enum.Enum):
            RED = 1
        @functools.cache
        def cached(): return 1
        def plain(x: Holder): return 1
        def wrapped(f): return f
        def make():
            class Local: pass
            return Local
        send(Model, Holder, Outer.Inner(), Color.RED, cached, plain, make())
        """,
        """
        import typing
        model, holder, inner, red, cached, plain, local = receive()
        for value in (model(), inner, red, cached, plain):
            back = pickle.loads(pickle.dumps(value))
            assert (back is value) == (value in (red, cached, plain))
            assert type(back) is type(value)
        print(typing.get_type_hints(holder) == {"model": model, "maybe": typing.Optional[int]})
        print(typing.get_type_hints(plain)["x"] is holder)
        print(sorted(n for n in vars(sys.modules["__main__"]) if not n.startswith("__")))
        """,
    )
    assert told.split("\n") == [
        "True",
        "True",
        "['Color', 'Holder', 'Model', 'Optional', 'Outer', 'cached', 'plain']",
    ]


def test_a_name_that_code_there_has_bound_is_left_alone(
    arrives: Callable[[str, str], str],
) -> None:
    told = arrives(
        "class Model: pass\nclass Other: pass\nsend(Model, Other)",
        """
        main = vars(sys.modules["__main__"])
        main["Model"] = "own"
        model, other = receive()
        print(main["Model"], main["Other"] is other)
        """,
    )
    assert told == "own True"


def test_an_annotation_keeps_nothing_from_being_sent(arrives: Callable[[str, str], str]) -> None:
    told = arrives(
        """
        from __future__ import annotations
        import threading
        class Unsendable:
            lock = threading.Lock()
        class Mentions:
            other: Unsendable
            own: Mentions
        send(Mentions)
        """,
        "mentions, = receive()\nprint(mentions.__annotations__)",
    )
    assert told == "{'other': 'Unsendable', 'own': 'Mentions'}"


def test_nothing_is_entered_into_the_main_of_a_client(two_sides: Callable[..., Any]) -> None:
    before = dict(vars(sys.modules["__main__"]))
    two_sides(of_a_cell("class NotEntered: pass")["NotEntered"])
    assert vars(sys.modules["__main__"]).keys() == before.keys()
