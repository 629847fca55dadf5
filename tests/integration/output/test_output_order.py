"""What a rank wrote before it answered is out before the answer, however it was written."""

from __future__ import annotations

import asyncio
import ctypes
import io
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch.actor import Actor, Channel, Port, ProcMesh, endpoint
from monarch.observe import OutputLine, flush_output, on_output
from tests.integration.gates import Gate, GateKeeper
from tests.integration.programs import PATIENCE_S, run, running

Spawn = Callable[..., ProcMesh]
WAYS = (
    "print", "os.write", "subprocess", "puts", "printf", "half a line", "half a raw line",
    "stderr", "logging", "sys.__stdout__", "buffer", "thread", "fork",
)  # fmt: skip


def write(way: str, text: str) -> None:
    """Write a text in one of these ways."""
    libc = ctypes.CDLL(None)
    match way:
        case "print":
            print(text)
        case "os.write":
            os.write(1, f"{text}\n".encode())
        case "subprocess":
            subprocess.run(["echo", text], check=True)
        case "puts":
            libc.puts(text.encode())
        case "printf":
            libc.printf(b"%s", text.encode())
        case "half a line":
            print(text, end="")
        case "half a raw line":
            os.write(2, text.encode())
        case "stderr":
            print(text, file=sys.stderr)
        case "logging":
            logging.getLogger("test").warning("%s", text)
        case "sys.__stdout__":
            print(text, file=sys.__stdout__, flush=True)
        case "buffer":
            sys.stdout.buffer.write(text.encode())
        case "thread":
            thread = threading.Thread(target=print, args=(text,))
            thread.start()
            thread.join()
        case "fork":
            pid = os.fork()
            if not pid:
                os.write(1, f"{text}\n".encode())
                os._exit(0)
            os.waitpid(pid, 0)
        case _:
            raise AssertionError(way)


class Writer(Actor):
    """Writes, and answers."""

    @endpoint
    def write(self, way: str, text: str) -> str:
        write(way, text)
        return text

    @endpoint
    def fail(self, text: str) -> None:
        print(text)
        raise ValueError(text)

    @endpoint
    def nothing(self) -> None:
        pass

    @endpoint
    def ask(self, other: Any, text: str) -> None:
        other.write.call("print", text).get()

    @endpoint
    def send(self, port: Port[str], text: str) -> None:
        print(text)
        port.send(text)

    @endpoint(explicit_response_port=True)
    def answer_by_port(self, port: Port[str], text: str) -> None:
        print(text)
        port.send(text)

    @endpoint
    def flood(self, gate: Gate, end: str) -> None:
        gate.pass_through()
        while not os.path.exists(end):
            os.write(1, b"flood " * 5000 + b"\n")


class AsyncWriter(Actor):
    """The same, on a loop."""

    @endpoint
    async def write(self, way: str, text: str) -> str:
        await asyncio.sleep(0)
        write(way, text)
        return text


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """The texts of whole lines since the test began."""
    texts: list[str] = []

    def listen(lines: Any) -> None:
        found: list[OutputLine] = list(lines)
        texts.extend(line.text for line in found if line.whole)

    end = on_output(listen)
    yield texts
    end()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Writer, AsyncWriter])
def test_each_way_to_write_is_out_before_the_answer(
    four: ProcMesh, heard: list[str], way: str, kind: type[Any]
) -> None:
    writer = four.slice(gpus=1).spawn("writer", kind)
    for number in range(20):
        writer.write.call_one(way, f"{way} {number}").get()
        assert heard.pop().endswith(f"{way} {number}")
        assert heard == []


def test_lines_of_all_ranks_are_out_before_their_answers_together(
    four: ProcMesh, heard: list[str]
) -> None:
    writer = four.spawn("writer", Writer)
    for number in range(20):
        writer.write.call("print", f"{number}").get()
        assert heard == 4 * [f"{number}"]
        heard.clear()


def test_lines_of_ranks_that_were_cast_to_are(spawn_procs: Spawn, heard: list[str]) -> None:
    writer = spawn_procs({"gpus": 33}).spawn("writer", Writer)
    for way in ("print", "os.write"):
        writer.write.call(way, way).get()
        assert heard == 33 * [way]
        heard.clear()


def test_each_answer_of_a_stream_comes_behind_its_own_lines(
    four: ProcMesh, heard: list[str]
) -> None:
    answers = four.spawn("writer", Writer).write.stream("print", "line")
    for number, answer in enumerate(answers):
        answer.get()
        assert len(heard) > number


def test_awaiting_is_as_good_as_blocking(four: ProcMesh, heard: list[str]) -> None:
    writer = four.slice(gpus=0).spawn("writer", Writer)

    async def main() -> None:
        for number in range(20):
            await writer.write.call_one("print", f"{number}")
            assert heard[-1] == f"{number}"
        answers = [writer.write.call_one("print", "many") for _ in range(20)]
        await asyncio.gather(*(answer.as_asyncio() for answer in answers))
        assert heard.count("many") == 20

    asyncio.run(main())


def test_an_error_comes_behind_what_was_written_before_it(four: ProcMesh, heard: list[str]) -> None:
    writer = four.slice(gpus=0).spawn("writer", Writer)
    for number in range(10):
        with pytest.raises(Exception, match=f"{number}"):
            writer.fail.call_one(f"{number}").get()
        assert heard[-1] == f"{number}"


def test_what_was_written_for_a_broadcast_is_out_before_a_later_answer(
    four: ProcMesh, heard: list[str]
) -> None:
    writer = four.slice(gpus=0).spawn("writer", Writer)
    for way in ("print", "os.write"):
        for number in range(10):
            writer.write.broadcast(way, f"{number}")
            writer.nothing.call_one().get()
            assert heard[-1] == f"{number}"


def test_what_others_wrote_for_a_rank_is_out_before_its_answer(
    four: ProcMesh, heard: list[str]
) -> None:
    writer = four.spawn("writer", Writer)
    asker, others = writer.slice(gpus=0), writer.slice(gpus=slice(1, 4))
    for number in range(20):
        asker.ask.call_one(others, f"{number}").get()
        assert heard == 3 * [f"{number}"]
        heard.clear()


def test_what_was_written_before_a_message_to_a_port_is_out_before_it(
    four: ProcMesh, heard: list[str]
) -> None:
    writer = four.slice(gpus=0).spawn("writer", Writer)
    port, receiver = Channel[str].open()
    for number in range(20):
        writer.send.broadcast(port, f"{number}")
        assert receiver.recv().get() == f"{number}"
        assert heard[-1] == f"{number}"
        assert writer.answer_by_port.call_one(f"by port {number}").get() == f"by port {number}"
        assert heard[-1] == f"by port {number}"


def test_messages_to_a_port_keep_their_order_whether_or_not_something_was_written(
    four: ProcMesh, heard: list[str]
) -> None:
    writer = four.slice(gpus=0).spawn("writer", Writer)
    port, receiver = Channel[str].open()
    for number in range(30):
        writer.send.broadcast(port, f"{number}")
    assert [receiver.recv().get() for _ in range(30)] == [f"{number}" for number in range(30)]
    assert heard == [f"{number}" for number in range(30)]


def test_redirected_streams_have_all_of_it(four: ProcMesh) -> None:
    writer = four.slice(gpus=2).spawn("writer", Writer)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        for number in range(5):
            writer.write.call_one("print", f"{number}").get()
            writer.write.call_one("stderr", f"{number}").get()
    assert out.getvalue() == "".join(f"[workers gpus=2] {number}\n" for number in range(5))
    assert err.getvalue() == out.getvalue()


def test_a_script_shows_lines_where_they_belong(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        from monarch.actor import this_host
        from tests.integration.output.test_output_order import WAYS, AsyncWriter, Writer

        procs = this_host().spawn_procs({"gpus": 1}, name="procs")
        writers = procs.spawn("sync", Writer), procs.spawn("async", AsyncWriter)
        for way in WAYS:
            if way not in ("stderr", "logging", "half a raw line"):
                for writer in writers:
                    writer.write.call_one(way, way).get()
                    print("then the client", flush=True)
        procs.stop().get()
        """,
    )
    ways = [way for way in WAYS if way not in ("stderr", "logging", "half a raw line")]
    assert done[0] == 0, done
    assert done[1].splitlines() == [
        line for way in ways for line in 2 * (f"[procs gpus=0] {way}", "then the client")
    ]


def test_a_script_shows_the_state_of_a_bar_before_the_answer_and_its_end(tmp_path: Path) -> None:
    program = """
        from monarch.actor import this_host
        from tests.integration.output.test_output_order import Writer

        procs = this_host().spawn_procs({"gpus": 1}, name="procs")
        writer = procs.spawn("writer", Writer)
        for text in ("\\r 10%", "\\r 20%", "\\r 30%", "x", "\\r 50%", "\\r    \\r", "\\r 70%"):
            writer.write.call_one("half a line", text).get()
            print("then the client", flush=True)
        procs.stop().get()
        """
    status, out, _ = run(tmp_path, program)
    assert status == 0
    said = ["[procs gpus=0]  10%", "", "", "[procs gpus=0]  30%\n[procs gpus=0] x",
            "[procs gpus=0]  50%", "", "[procs gpus=0]  70%"]  # fmt: skip
    expected = "".join(f"{text}\nthen the client\n" if text else "then the client\n"
                       for text in said)  # fmt: skip
    assert out == expected


def test_a_script_shows_what_was_flushed_before_its_line_ends(tmp_path: Path) -> None:
    program = """
        import os, sys
        from monarch.actor import Actor, endpoint, this_host

        class Asker(Actor):
            @endpoint
            def ask(self, gate):
                print("working", end="", flush=True)
                open(gate).read()
                print(", done")

        gate = sys.argv[1]
        os.mkfifo(gate)
        procs = this_host().spawn_procs({"gpus": 1}, name="procs")
        answer = procs.spawn("asker", Asker).ask.call_one(gate)
        print("begun", flush=True)
        answer.get()
        print("then the client", flush=True)
        procs.stop().get()
        """
    gate = tmp_path / "gate"
    with running(tmp_path, program, str(gate)) as one:
        assert one.line() == "begun"
        assert one.process.stdout is not None
        shown = b""
        while shown != b"[procs gpus=0] working":
            more = os.read(one.process.stdout.fileno(), 100)
            assert more, shown
            shown += more
        gate.write_text("go on")
        assert [one.line(), one.line()] == [", done", "then the client"]


@contextmanager
def stopped_agent() -> Iterator[None]:
    """The host agent of this process stands still."""
    (agent,) = psutil.Process().children()
    agent.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent.send_signal(signal.SIGCONT)


def test_an_agent_that_stands_still_holds_no_answer_back_for_ever(
    spawn_procs: Spawn, heard: list[str]
) -> None:
    writer = spawn_procs({"gpus": 1}).spawn("writer", Writer)
    writer.nothing.call_one().get()
    with stopped_agent():
        for number in range(3):
            assert writer.write.call_one("print", f"{number}").get(PATIENCE_S) == f"{number}"
        assert heard == []
    flush_output(PATIENCE_S)
    assert heard == ["0", "1", "2"], "nothing is lost"
    writer.write.call_one("print", "after").get()
    assert heard[-1] == "after", "and it is waited for again"


def test_a_rank_that_floods_holds_no_answer_of_another_back_for_ever(
    spawn_procs: Spawn, heard: list[str], gate: GateKeeper, tmp_path: Path
) -> None:
    writer = spawn_procs({"gpus": 2}).spawn("writer", Writer)
    end = tmp_path / "end"
    flood = writer.slice(gpus=0).flood.call_one(gate.gate, str(end))
    gate.wait_entered()
    gate.open()
    for number in range(5):
        said = writer.slice(gpus=1).write.call_one("print", f"{number}").get(PATIENCE_S)
        assert said == f"{number}"
    end.touch()
    flood.get(PATIENCE_S)
    assert any(text.startswith("flood") for text in heard)


def test_an_error_of_many_comes_behind_the_lines_of_all(four: ProcMesh, heard: list[str]) -> None:
    writer = four.spawn("writer", Writer)
    for number in range(10):
        with pytest.raises(Exception, match=f"{number}"):
            writer.fail.call(f"{number}").get()
        assert f"{number}" in heard

    async def main() -> None:
        with pytest.raises(Exception, match="awaited"):
            await writer.fail.call("awaited")
        assert "awaited" in heard

    asyncio.run(main())
