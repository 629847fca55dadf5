"""Where Yama lets only ancestors look into a process, who registers memory lets its peers.

Both sides run without capabilities, which would pass Yama by. Runs in the virtual machine of
`test_softroce.py`, and on any machine whose `kernel.yama.ptrace_scope` is 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from monarch._src.system import shared_memory

OWNER = """
import sys
from monarch._src.system import shared_memory
from monarch._src.rdma.registrable import memory_of
data = bytearray(b"registered")
if sys.argv[1] == "lets":
    shared_memory.let_others_trace()
print(memory_of(data).address, flush=True)
sys.stdin.read()
"""
READER = """
import sys
from monarch._src.system import shared_memory
from monarch._src.rdma.registrable import memory_of
room = bytearray(10)
pid, address = map(int, sys.argv[1:])
try:
    shared_memory.copy_from(pid, [(address, memory_of(room).address, 10)])
except OSError as error:
    print(error.strerror)
else:
    print(room.decode())
"""
_POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []

pytestmark = [
    pytest.mark.skipif(
        shared_memory.yama_scope() != 1, reason="kernel.yama.ptrace_scope is not 1 on this machine"
    ),
    pytest.mark.skipif(
        bool(_POWERLESS) and shutil.which("setpriv") is None, reason="needs setpriv (util-linux)"
    ),
]


def program(text: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*_POWERLESS, sys.executable, "-c", text, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "said"), [("lets", "registered"), ("keeps", os.strerror(1))], ids=["lets", "keeps"]
)
def test_yama_lets_who_is_no_descendant_read_only_whom_the_owner_lets(
    owner: str, said: str
) -> None:
    with program(OWNER, owner) as owning:
        assert owning.stdin is not None
        assert owning.stdout is not None
        address = owning.stdout.readline().strip()
        with program(READER, str(owning.pid), address) as reading:
            assert reading.communicate()[0].strip() == said
        owning.stdin.close()
    assert (owning.returncode, reading.returncode) == (0, 0)
