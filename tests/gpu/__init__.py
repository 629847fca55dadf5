"""Tests that need a real GPU. `make test-gpu` runs them, and those of `tests/integration/rdma`."""
