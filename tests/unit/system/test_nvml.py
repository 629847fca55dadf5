"""The use of NVIDIA devices by process, read from a library that has the driver's interface."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch._src.system.nvml import EVERY_S, GpuMonitor, GpuUse

Build = Callable[..., str]
# Two devices. Process 7 is on both; 9 has no memory that the driver would tell.
DRIVER = r"""
#include <stddef.h>
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process_t;
typedef struct { unsigned pid; unsigned long long at; unsigned sm, memory, enc, dec; } sample_t;
static int devices[2] = {0, 1};
static unsigned reads = 0;
int nvmlInit_v2(void) { return STATUS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) { *device = &devices[i]; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(int *device, unsigned *count, process_t *found) {
  found[0].pid = 7; found[0].memory = *device == 0 ? 1000 + reads++ : 24;
  if (*device == 1) { *count = 1; return 0; }
  found[1].pid = 9; found[1].memory = ~0ull;
  *count = 2; return 0;
}
int nvmlDeviceGetProcessUtilization(int *device, sample_t *found, unsigned *count,
                                    unsigned long long since) {
  if (since >= 20) return 6;  /* no newer sample */
  for (unsigned i = 0; i < 3; i++) {
    found[i].pid = i == 2 ? 9 : 7; found[i].at = i == 1 ? 20 : 10; found[i].sm = 30 + 10 * i;
  }
  *count = *device == 0 ? 3 : 2; return 0;
}
"""


@pytest.fixture
def build(tmp_path: Path) -> Build:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")

    def built(status: int = 0, source: str = DRIVER) -> str:
        path = tmp_path / f"nvml{status}.so"
        subprocess.run(
            [compiler, "-shared", "-fPIC", f"-DSTATUS={status}", "-xc", "-o", path, "-"],
            input=source,
            text=True,
            check=True,
        )
        return str(path)

    return built


def test_memory_and_load_are_summed_over_devices_by_process(build: Build) -> None:
    monitor = GpuMonitor(build())
    # Of the samples of a process the newest counts: 40 on each device.
    assert monitor.use() == {7: GpuUse(1024, 80), 9: GpuUse(0, 50)}


def test_the_driver_is_asked_once_in_a_while_and_a_process_without_new_samples_is_idle(
    build: Build,
) -> None:
    now = [0.0]
    monitor = GpuMonitor(build(), clock=lambda: now[0])
    first = monitor.use()
    now[0] += EVERY_S * 0.9
    assert monitor.use() is first
    now[0] += EVERY_S
    assert monitor.use() == {7: GpuUse(1025, 0), 9: GpuUse(0, 0)}


def test_a_host_without_a_driver_or_with_one_that_fails_or_is_too_old_has_no_figures(
    build: Build,
    tmp_path: Path,
) -> None:
    assert GpuMonitor(str(tmp_path / "none.so")).use() == {}
    assert GpuMonitor(build(9)).use() == {}
    old = DRIVER.replace("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlOther")
    assert GpuMonitor(build(0, old)).use() == {}
    assert GpuMonitor(build(1, "int other;")).use() == {}
