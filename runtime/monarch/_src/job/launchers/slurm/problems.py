"""The texts of problems that kept the workers of a Slurm job from starting.

Runs in: clients. Reads the log of the job, if it can be read here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from monarch._src.job.launchers.remote.remote_shell import Arrived, arrived_problem
from monarch._src.job.launchers.slurm.state import reports


def problem_text(job: str, comment: str) -> str:
    """The problem that the batch program has reported, with the remedy; empty if there is none.

    Raises:
        ValueError: the comment was changed.
    """
    problem = reports.problem(comment)
    if problem is None:
        return ""
    answer = problem.answer
    if "why" in answer:
        return arrived_problem(problem.node, msgspec.convert(answer, Arrived))
    if "text" in answer:
        return f"{answer['text']} (on {problem.node})"
    said = "; ".join(problem.last[-3:]) or "it printed nothing"
    return (
        f"the workers of Slurm job {job} did not start (status {problem.status}): {said}; give "
        "python_exe= an interpreter that has monarch on the nodes"
    )


def log_text(path: str | None) -> str:
    """The path of the log, and its last line if it can be read here, for the end of an error."""
    if path is None:
        return ""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return f"; its log is {path} on the nodes"
    return f"; its log {path} ends with: {lines[-1]}" if lines else f"; its log {path} is empty"
