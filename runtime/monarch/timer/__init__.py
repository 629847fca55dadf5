"""How long parts of a program take on a rank, by the GPU's clock where there is one.

The functions run in the process that calls them. `monarch.remote` sends them to ranks:

start = monarch.remote("monarch.timer.execution_timer_start", propagate=lambda: None)

It imports torch.
"""

from monarch._src.tensor.remote.execution_times import (
    ExecutionTimer,
    execution_timer_start,
    execution_timer_stop,
    get_execution_timer_average_ms,
    get_execution_timer_summary,
    get_latest_timer_measurement,
    get_time_perfcounter,
)

__all__ = [
    "ExecutionTimer",
    "execution_timer_start",
    "execution_timer_stop",
    "get_execution_timer_average_ms",
    "get_execution_timer_summary",
    "get_latest_timer_measurement",
    "get_time_perfcounter",
]
