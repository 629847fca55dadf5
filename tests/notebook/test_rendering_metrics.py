"""How what was counted and measured reads, as text and as HTML."""

from __future__ import annotations

import re

from monarch.observe import Metrics, MissingProcess
from monarch_jupyter.rendering.metrics import endpoints_html, endpoints_text
from monarch_jupyter.rendering.telemetry import measured_html, measured_text
from tests.notebook.reader import Reader
from tests.notebook.samples import counted, instrument, measured, process


class TestEndpoints:
    def said(self, *rows: object, missing: tuple[MissingProcess, ...] = (), every: bool) -> str:
        """The table as text, after a look that the HTML says the same."""
        metrics = Metrics(rows, missing)  # type: ignore[arg-type]
        text = endpoints_text(metrics, {"u1"}, every=every)
        read = Reader(endpoints_html(metrics, {"u1"}, every=every)).text
        assert "".join(read.split()) == "".join(text.split())
        return text

    def test_each_endpoint_is_a_line_as_ranks_ran_it(self) -> None:
        rows = [
            counted("rest", calls=8, total_s=0.08, mean_s=0.01, p99_s=0.01, slowest=None),
            counted("step", errors=2, in_flight=8),
            counted("step", "call"),
        ]
        *table, note = self.said(*rows, every=False).splitlines()
        cells = [[cell.strip() for cell in line.split("  ") if cell] for line in table]
        head = ["mesh", "actor", "endpoint", "calls", "errors", "running", "mean", "p99"]
        assert cells == [
            [*head, "slowest", "in", "out"],
            ["workers", "trainers", "Trainer.step", "100", "2", "8", "12 ms", "31 ms",
             "gpus=3 15 ms", "2.0 KiB", "20 MiB"],
            ["workers", "trainers", "Trainer.rest", "8", "0", "0", "10 ms", "10 ms",
             "-", "2.0 KiB", "20 MiB"],
        ]  # fmt: skip
        assert note == "as ranks ran them; `%monarch ls --metrics` shows callers too"

    def test_endpoints_of_an_actor_of_the_runtime_are_one_line(self) -> None:
        rows = [
            counted("run", actor_class="the tensors", actor="tensors", errors=1),
            counted("call", actor_class="the tensors", actor="tensors", total_s=0.8, in_flight=2),
        ]
        _, line, _ = self.said(*rows, every=False).splitlines()
        assert line.split() == [
            "workers", "tensors", "the", "tensors", "200", "1", "2", "10", "ms", "-", "-",
            "3.9", "KiB", "40", "MiB",
        ]  # fmt: skip
        assert self.said(*rows, every=True).count("the tensors") == 2

    def test_in_full_there_are_all_figures_from_both_sides(self) -> None:
        rows = [
            counted(),
            counted(adverb="call", processes=2),
            counted(adverb="broadcast", mean_s=None, p50_s=None, p90_s=None, p99_s=None,
                    max_s=None, slowest=None),
        ]  # fmt: skip
        lines = [line.split("  ") for line in self.said(*rows, every=True).splitlines()]
        head, *cells = [[cell.strip() for cell in line if cell] for line in lines]
        assert head[3:] == [
            "by", "calls", "errors", "in flight", "calls/s", "mean", "p50", "p90", "p99", "longest",
            "waited", "slowest", "in", "out",
        ]  # fmt: skip
        assert [line[3:] for line in cells] == [
            ["ranks", "100", "0", "0", "12", "12 ms", "10 ms", "20 ms", "31 ms", "1.5 s", "3.7 µs",
             "gpus=3 15 ms", "2.0 KiB", "20 MiB"],
            ["call", "100", "0", "0", "12", "12 ms", "10 ms", "20 ms", "31 ms", "1.5 s", "-",
             "client 15 ms", "2.0 KiB", "20 MiB"],
            ["broadcast", "100", "0", "0", "12", "-", "-", "-", "-", "-", "-", "-", "2.0 KiB",
             "20 MiB"],
        ]  # fmt: skip

    def test_a_long_list_shows_where_most_time_goes_and_says_what_it_leaves_out(self) -> None:
        rows = [counted(f"e{number}", total_s=float(number)) for number in range(20)]
        *lines, note = self.said(*rows, every=False).splitlines()[1:]
        assert [line.split()[2] for line in lines] == [f"Trainer.e{n}" for n in range(19, 11, -1)]
        assert note == "and 12 more; `%monarch ls --metrics` shows all"
        assert len(self.said(*rows, every=True).splitlines()) == 21

    def test_who_did_not_answer_is_named_with_the_reason(self) -> None:
        busy = "busy in Trainer.step for 2.0 s; no answer within 1 s"
        missing = [MissingProcess(process(rank), "killed by SIGKILL") for rank in (1, 2, 3)]
        missing.append(MissingProcess(process(5), busy))
        said = self.said(missing=tuple(missing), every=False)
        assert said.splitlines() == [
            "no metrics from workers gpus=1..3: killed by SIGKILL",
            f"no metrics from workers gpus=5: {busy}",
        ]

    def test_meshes_that_are_not_listed_are_left_out_and_the_clients_own_actors_are_not(
        self,
    ) -> None:
        rows = [counted("theirs", mesh_uid="u2"), counted("ours", mesh="client", mesh_uid="0")]
        said = self.said(*rows, every=True)
        assert "Trainer.ours" in said
        assert "Trainer.theirs" not in said

    def test_where_nothing_was_called_nothing_is_said(self) -> None:
        assert self.said(every=False) == self.said(every=True) == ""


class TestMeasured:
    def said(self, spans: list[object], instruments: list[object]) -> list[list[str]]:
        """The cells of the tables, after a look that the HTML says the same."""
        metrics = Metrics((), (), tuple(spans), tuple(instruments))  # type: ignore[arg-type]
        text = measured_text(metrics, {"u1"})
        read = Reader(measured_html(metrics, {"u1"})).text
        assert "".join(read.split()) == "".join(text.split())
        return [re.split(r" {2,}", line.strip()) for line in text.splitlines() if line]

    def test_a_span_says_what_it_is_part_of(self) -> None:
        spans = [
            measured(),
            measured("decode", parent="load", errors=2, running=1, slowest=None),
            measured("mine", mesh="client", mesh_uid="0", actor="client", endpoint=None,
                     parent=None, mean_s=None, p50_s=None, p99_s=None, max_s=None, processes=1),
        ]  # fmt: skip
        times = ["12 ms", "10 ms", "31 ms", "1.5 s"]
        assert self.said([*spans, measured(mesh_uid="u2")], [])[1:] == [
            ["workers", "trainers", "load", "Trainer.step", "100", "0", "0", *times,
             "gpus=3 15 ms"],
            ["workers", "trainers", "decode", "load in Trainer.step", "100", "2", "1", *times, "-"],
            ["client", "client", "mine", "-", "100", "0", "0", "-", "-", "-", "-", "-"],
        ]  # fmt: skip

    def test_an_instrument_says_its_unit_its_attributes_and_what_was_no_number(self) -> None:
        none = {"mean": None, "p50": None, "p99": None, "min": None, "max": None}
        counter = instrument("tokens", kind="counter", unit="", attributes={}, total=2.5e6, **none)
        said = self.said([], [instrument(not_finite=1), counter, instrument(mesh_uid="u2")])
        assert said[1:] == [
            ["workers", "trainers", "loss (nats)", "phase=eval", "3, 1 not finite", "1.5", "0.5",
             "0.5", "1", "0", "1"],
            ["workers", "trainers", "tokens", "-", "3", "2,500,000", "-", "-", "-", "-", "-"],
        ]  # fmt: skip

    def test_where_nothing_was_measured_nothing_is_said(self) -> None:
        assert self.said([], []) == []
