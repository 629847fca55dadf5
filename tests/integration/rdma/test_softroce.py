"""`ibverbs` where there is no RDMA card: in a virtual machine with Soft-RoCE, booted once.

What runs inside are tests of this folder, by pytest, with libibverbs, pyverbs and a kernel that are
those of any machine with a card; only the card is software.
"""

from __future__ import annotations

import os
import shlex
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from monarch._src.rdma.verbs import sysfs
from tests import vm

ROOT = Path(__file__).parents[3]
INSIDE = ("test_ibverbs.py", "test_ibverbs_contract.py", "test_yama.py")
# Emulated, each byte that is made and compared costs; sizes from 4 MiB on show nothing new there.
LEAST = {"MONARCH_TEST_LARGEST_MIB": "4", "MONARCH_TEST_TRANSFERS": "30"}
# Deaths take longest, since each needs processes of its own: one way each, in the machine. What
# becomes of a handle whose owner has ended, `test_ibverbs.py` shows with the processes that it has.
# `make stress` leaves none out.
ONE_WAY = (
    "test_a_handle_outlives_its_owner_as_an_error[ibverbs]",
    "test_a_receiver_that_dies_half_way_costs_the_owner_nothing[ibverbs-read]",
    "test_an_owner_that_dies_half_way_is_a_typed_error[ibverbs-write]",
)
BOTH_WAYS = bool(os.environ.get("MONARCH_TEST_BOTH_WAYS"))
PATIENCE_S = 1500.0
ONLY = os.environ.get("MONARCH_TEST_IN_MACHINE", "")  # more arguments for pytest, such as -k


def _environment() -> dict[str, str]:
    path = os.pathsep.join((str(vm.pyverbs()), str(ROOT / "runtime"), str(ROOT)))
    return {
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "HOME": "/tmp", "LC_ALL": "C.UTF-8",
        "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **{name: os.environ.get(name, value) for name, value in LEAST.items()},
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_all_that_a_card_has_to_do_is_done_over_soft_roce_in_a_virtual_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if sysfs.present():
        pytest.skip("there is an RDMA device here, over which those tests run themselves")
    reason = vm.why_not()
    if reason is not None:
        pytest.skip(reason)
    left_out = [f"--deselect=tests/integration/rdma/{INSIDE[1]}::{name}" for name in ONE_WAY]
    if BOTH_WAYS:
        left_out = []
    places = [str(ROOT / "tests/integration/rdma" / name) for name in INSIDE]
    taken = [
        *vm.python(), (ROOT / "runtime", lambda _: True), (ROOT / "tests", lambda _: True),
    ]  # fmt: skip
    status, log = vm.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "--junitxml=/mnt/out/results.xml", *left_out, *shlex.split(ONLY), *places,
        ],
        tmp_path, _environment(), taken, patience_s=PATIENCE_S,
    )  # fmt: skip
    results = tmp_path / "results.xml"
    assert results.exists(), log
    bad: list[str] = []
    lines: list[str] = []
    for case in ElementTree.parse(results).iter("testcase"):
        outcome = next((c.tag for c in case if c.tag in ("failure", "error", "skipped")), "passed")
        lines.append(f"  {outcome:8} {float(case.get('time', '0')):6.1f} s  {case.get('name')}")
        if outcome != "passed":
            bad.append(lines[-1])
    with capsys.disabled():
        print("\nin a virtual machine with Soft-RoCE:", *lines, sep="\n")
    assert lines
    assert status == 0, f"{log}\n" + "\n".join(bad)
    assert bad == []
