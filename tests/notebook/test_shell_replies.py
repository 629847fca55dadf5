"""A request that comes while the kernel sends a reply is read."""

from __future__ import annotations

from tests.notebook.kernel import Kernel

# The thread that reads requests waits until one has come, and sends a reply before it reads it. The
# reply has no known recipient, so that the socket drops it.
REPLY_FIRST = """
import select, threading
import zmq
shell_thread = get_ipython().kernel.shell_channel_thread
waits, come = threading.Event(), []
def reply_first():
    descriptor = get_ipython().kernel.shell_stream.getsockopt(zmq.FD)
    waits.set()
    come.extend(select.select([descriptor], [], [], 60)[0])
    shell_thread.manager._send_on_shell_channel([b"nobody", b"reply"])
shell_thread.io_loop.add_callback(reply_first)
waits.wait()
print("it waits")
"""


def test_a_request_that_comes_before_a_reply_is_sent_is_read(fresh_kernel: Kernel) -> None:
    kernel = fresh_kernel
    request = kernel.client.execute(REPLY_FIRST)
    # That thread waits, so this cell's own reply comes after the next request. If the request came
    # before it waits, the thread would read it as any other.
    kernel.wait_until_written(request, "it waits")
    assert kernel.ok("print(len(come))").stdout == "1\n"
