"""Traces of calls, waits and spans, for https://ui.perfetto.dev."""
