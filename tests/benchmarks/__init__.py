"""Benchmarks: run by hand, never by the test suite. Each prints ratios measured in one run."""
