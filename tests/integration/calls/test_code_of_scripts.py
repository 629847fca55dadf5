"""Classes and functions of a script on ranks: as in the script itself, and once each."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.integration.programs import run

HEAD = """
import pickle, sys
from monarch.actor import Actor, endpoint, this_host

class Caller(Actor):
    @endpoint
    def apply(self, function, *arguments): return function(*arguments)

def started(cls, *arguments, name="caller"):
    return this_host().spawn_procs({"gpus": 1}).spawn(name, cls, *arguments)
"""


def shown(folder: Path, program: str, *, first: str = "") -> list[str]:
    """What such a script prints, by lines."""
    status, out, err = run(folder, first + HEAD + textwrap.dedent(program))
    assert (status, err) == (0, "")
    return out.splitlines()


def test_a_cached_function_is_an_argument_a_global_and_an_actors_own(tmp_path: Path) -> None:
    told = shown(
        tmp_path,
        """
        import functools
        @functools.lru_cache(maxsize=None)
        def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
        class Own(Actor):
            @functools.cached_property
            def made(self): return [1]
            @endpoint
            def twice(self): return self.made is self.made, fib(20), fib.cache_info().currsize
        print(started(Caller).apply.call_one(fib, 20).get())
        own = started(Own)
        print(own.twice.call_one().get())
        print(own.twice.call_one().get(), fib.cache_info().currsize)
        """,
    )
    assert told == ["6765", "(True, 6765, 21)", "(True, 6765, 21) 0"]


def test_what_a_rank_assigns_to_a_class_outlives_messages_and_spawns(tmp_path: Path) -> None:
    told = shown(
        tmp_path,
        """
        class Cache:
            entries = {}
            hits = 0
        class Fills(Actor):
            @endpoint
            def fill(self):
                Cache.entries["a"] = 1
                Cache.hits += 1
            @endpoint
            def state(self): return Cache.entries, Cache.hits
            @endpoint
            def same(self, value): return value
        class Forwards(Actor):
            @endpoint
            def forward(self, to, value):
                type(value).hits = 70
                return to.same.call_one(value).get()
        procs = this_host().spawn_procs({"gpus": 1})
        fills = procs.spawn("fills", Fills)
        fills.fill.call_one().get()
        print(type(fills.same.call_one(Cache()).get()) is Cache)
        print(type(started(Forwards).forward.call_one(fills, Cache()).get()) is Cache)
        again = procs.spawn("again", Fills)
        again.fill.call_one().get()
        print(fills.state.call_one().get(), Cache.entries, Cache.hits)
        """,
    )
    assert told == ["True", "True", "({'a': 1}, 2) {} 0"]


def test_a_spawn_brings_a_definition_that_has_changed(tmp_path: Path) -> None:
    told = shown(
        tmp_path,
        """
        rate = 0.1
        class Trains(Actor):
            limit = 3
            @endpoint
            def told(self): return rate, self.limit, self.helper()
            def helper(self): return 1
        procs = this_host().spawn_procs({"gpus": 1})
        first = procs.spawn("first", Trains)
        print(first.told.call_one().get())
        rate, Trains.limit = 0.2, 4
        Trains.helper = lambda self: 2
        print(first.told.call_one().get())
        print(procs.spawn("second", Trains).told.call_one().get())
        """,
    )
    assert told == ["(0.1, 3, 1)", "(0.1, 3, 1)", "(0.2, 4, 2)"]


def test_subclasses_and_registries_are_as_the_script_has_made_them(tmp_path: Path) -> None:
    told = shown(
        tmp_path,
        """
        class Plugin:
            registry = {}
            def __init_subclass__(cls, /, key, **options):
                super().__init_subclass__(**options)
                if key in Plugin.registry: raise ValueError("twice " + key)
                Plugin.registry[key] = cls
                cls.key = key
        class Csv(Plugin, key="csv"): pass
        class Json(Csv, key="json"): pass
        def told(*made):
            found = {k: v is type(made[0]) for k, v in Plugin.registry.items()}
            return found, [c.__name__ for c in Plugin.__subclasses__()], [c.key for c in made]
        caller = started(Caller)
        for _ in range(2):
            print(caller.apply.call_one(told, Json(), Csv()).get())
        """,
    )
    assert told == ["({'csv': False, 'json': True}, ['Csv'], ['json', 'csv'])"] * 2


def test_the_main_of_a_rank_has_what_came_under_its_name(tmp_path: Path) -> None:
    told = shown(
        tmp_path,
        """
        import copy, typing
        from typing import Optional
        class Model:
            def __init__(self): self.w = 3
        class Holder:
            model: Model
            maybe: Optional[int]
        class Uses(Actor):
            @endpoint
            def made_here(self): return pickle.loads(pickle.dumps(Model())).w
            @endpoint
            def came(self, value): return type(pickle.loads(pickle.dumps(value))) is type(value)
            @endpoint
            def take(self, value): return type(value).__name__
            @endpoint
            def hints(self): return typing.get_type_hints(Holder)
            @endpoint
            def bind(self, value): sys.modules["__main__"].Late = value
            @endpoint
            def names(self): return [n for n in vars(sys.modules["__main__"]) if n[0] != "_"]
            @endpoint
            def late(self): return sys.modules["__main__"].Late
        uses = started(Uses)
        print(uses.made_here.call_one().get(), uses.came.call_one(Model()).get())
        print(uses.hints.call_one().get() == {"model": Model, "maybe": Optional[int]})
        uses.bind.call_one(5).get()
        class Late: pass
        print(uses.take.call_one(Late()).get(), uses.late.call_one().get())
        print(sorted(uses.names.call_one().get()))
        """,
        first="from __future__ import annotations\n",
    )
    assert told == [
        "3 True",
        "True",
        "Late 5",
        "['Holder', 'Late', 'Model', 'Optional', 'Uses']",
    ]


def test_what_cannot_be_sent_names_the_thing_and_the_way_out(tmp_path: Path) -> None:
    told = shown(
        tmp_path,
        """
        import contextvars, threading
        lock = threading.Lock()
        def guarded(): return lock
        class Single:
            def __reduce__(self): return "THE_ONE"
        THE_ONE = Single()
        caller = started(Caller)
        for value in (guarded, threading.local(), contextvars.ContextVar("v"), THE_ONE):
            try:
                caller.apply.call_one(value)
            except TypeError as error:
                print(error)
        """,
    )
    way = "; make it on the rank: in `__init__` of the actor, or where it is first used"
    head = "Caller.apply: argument 'function' of type"
    assert told == [
        (
            f"{head} function cannot be sent to another process, because of function, which uses "
            f"lock, a lock: cannot pickle '_thread.lock' object{way}"
        ),
        (
            f"{head} _local cannot be sent to another process: cannot pickle '_thread._local' "
            f"object{way}"
        ),
        (
            f"{head} ContextVar cannot be sent to another process: cannot pickle "
            f"'_contextvars.ContextVar' object{way}"
        ),
        (
            f"{head} Single cannot be sent to another process: cannot pickle 'THE_ONE', a Single "
            "pickled as a name in `__main__`; "
            "put it into a module that the other process can import"
        ),
    ]
