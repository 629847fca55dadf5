"""What a program says of how it reaches processes, before it uses any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch._src.mesh.channel_transport import check_transport, forget_transport
from monarch._src.net.state.addresses import parse_address
from monarch.actor import ChannelTransport, enable_transport, shutdown_context, this_host

FAR = [parse_address("tcp://192.0.2.1:26600")]


@pytest.fixture(autouse=True)
def nothing_was_said() -> Iterator[None]:
    shutdown_context()
    forget_transport()
    yield
    forget_transport()


def test_the_same_again_is_nothing_and_another_one_an_error() -> None:
    enable_transport("tcp")
    enable_transport(ChannelTransport.TcpWithHostname)
    with pytest.raises(RuntimeError, match="is tcp, and cannot become ipc"):
        enable_transport("ipc")


def test_it_comes_too_late_once_there_are_processes() -> None:
    this_host().spawn_procs().initialized.get(timeout=60)
    with pytest.raises(RuntimeError, match="comes too late"):
        enable_transport("tcp")
    shutdown_context()
    enable_transport("tcp")


def test_who_says_ipc_dials_no_other_host_and_who_says_nothing_may() -> None:
    check_transport(FAR)
    enable_transport("ipc")
    with pytest.raises(RuntimeError, match=r"tcp://192\.0\.2\.1:26600 is not dialled"):
        check_transport(FAR)
    check_transport([parse_address("ipc:///tmp/w")])


@pytest.mark.parametrize("said", ["tcp", "tcp://h1:26600", ChannelTransport.TcpWithLocalhost])
def test_who_says_tcp_may_dial(said: str | ChannelTransport) -> None:
    enable_transport(said)
    check_transport(FAR)


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        ("quic", ValueError, "there is no transport 'quic'"),
        ("metatls", ValueError, "always encrypted"),
        ("tcp://h1", ValueError, "has no port"),
        (7, TypeError, "give a ChannelTransport"),
    ],
)
def test_what_is_no_transport_is_refused(said: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        enable_transport(said)
