"""Ends the meshes that a kept session has on workers, when it has no client to do that.

Runs in: a process of its own (`programs.release_session`), started by a host agent that ends; or a
process that finds the record of such an agent. The agent itself has no keys of any job, and
connects to no other host.
Invariants: bounded in time. It connects as a client of the session with a larger number than the
last one, so that workers refuse all earlier clients; a worker that has nothing of the session
refuses, and is left alone.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from monarch._src.config import settings
from monarch._src.errors import HostUnreachableError
from monarch._src.net.hosts import keys
from monarch._src.net.hosts.audit import Audit
from monarch._src.net.hosts.link_ends import Notice, PeerNamed, bounds_of
from monarch._src.net.hosts.links import Links
from monarch._src.net.interfaces import first_that_answers
from monarch._src.net.remote_links import frames_within
from monarch._src.net.state.access import TRUST_ALL, Role
from monarch._src.net.state.addresses import Address, parse_address
from monarch._src.net.state.link_actions import Bounds, LinkUp, PeerLeft, PeerLost, PeerRefused
from monarch._src.net.tunnel.launcher import TunnelLauncher
from monarch._src.session import records
from monarch._src.session.records import AwayRecord, WorkerRecord
from monarch._src.session.release import patience
from monarch._src.wire.frames import Buffer, FrameError, Payload, decode, encode
from monarch._src.wire.ids import AGENT, host_of_site
from monarch._src.wire.messages import HoldSite, LetSiteGo, Message, Relay, SiteFree, SiteIs

MOST_AT_ONCE = 64
log = logging.getLogger("monarch.agent")


def release(directory: Path) -> list[str]:
    """Have workers end their meshes of the session of that directory; returns the failures.

    Afterwards the record in the directory has only the workers that failed.
    """
    away = records.read_away(directory)
    if away is None:
        return []
    ca, private_key = [*away.keys, "", ""][:2]
    try:
        own = None if ca == TRUST_ALL else keys.load(ca, private_key or None, Role.OWNER)
    except FileNotFoundError:
        return _without_keys(directory, away, ca)
    except (OSError, ValueError) as error:
        return [f"{one.address} was not told to end what it keeps: {error}" for one in away.workers]
    through: TunnelLauncher | None = None
    if away.gateway:
        try:
            gateway = parse_address(away.gateway)
            through = TunnelLauncher(directory, gateway, away.keys, settings().liveness)
        except (OSError, ValueError) as error:
            return [_text(one, str(error)) for one in away.workers]
    try:
        problems = _Release(away, own, through).run()
    finally:
        if through is not None:
            through.close()
    left = list(problems)
    records.write_away(directory, msgspec.structs.replace(away, workers=left) if left else None)
    return [_text(one, why) for one, why in problems.items()]


def _without_keys(directory: Path, away: AwayRecord, ca: str) -> list[str]:
    """Release without the keys of the job: after the job was killed, its workers have ended."""
    if away.gateway:
        left = list(away.workers)  # workers behind it cannot be asked
    else:
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            ways = pool.map(partial(_way_to, through=None), away.workers)
            left = [one for one, way in zip(away.workers, ways, strict=True) if way]
    records.write_away(directory, msgspec.structs.replace(away, workers=left) if left else None)
    return [
        f"the worker at {one.address} ({host_of_site(one.site)}) was not told to end what it "
        f"keeps: the keys of its job are gone from {ca}; put them back, or if that job has ended "
        f"remove {directory}"
        for one in left
    ]


def _text(one: WorkerRecord, why: str) -> str:
    return (
        f"the worker at {one.address} ({host_of_site(one.site)}) was not told to end what it keeps:"
        f" {why}; `monarch reap` here tries again, `monarch kill` there ends it"
    )


def _way_to(one: WorkerRecord, through: TunnelLauncher | None) -> Address | str:
    """The address to dial, or the reason that there is none; empty if the worker has ended."""
    address = parse_address(one.address)
    if address.transport == "ipc":
        return address if Path(address.path).exists() else ""
    try:
        if through is not None and address != through.gateway:
            return through.reach(address, patience() / 2)[1]
        return first_that_answers("it", [address], patience() / 2)
    except HostUnreachableError as error:
        return "" if "ECONNREFUSED" in str(error) else str(error)


class _Release:
    def __init__(
        self, away: AwayRecord, own: keys.Keys | None, through: TunnelLauncher | None
    ) -> None:
        self._away = away
        self._through = through
        self._name = f"client-{os.urandom(6).hex()}"
        self._came: deque[tuple[str, Sequence[Buffer] | Notice, int]] = deque()
        # By link: the workers that have not answered.
        self._owing: dict[str, WorkerRecord] = {
            f"?{number}": one for number, one in enumerate(away.workers)
        }
        self._problems: dict[WorkerRecord, str] = {}
        self._liveness_s = settings().liveness
        bounds = bounds_of(self._liveness_s, prompt=True)
        self._links = Links(
            self._name, own, Audit(None), Bounds(bounds.patience_s, bounds.ping_s, None),
            self._liveness_s / 6,
            lambda peer, frames, size: self._came.append((peer, frames, size)),
            lambda peer, notice: self._came.append((peer, notice, -1)),
        )  # fmt: skip

    def run(self) -> dict[WorkerRecord, str]:
        """Release all workers at the same time, and wait. Returns the failures."""
        until = time.monotonic() + patience()
        try:
            for link, address in self._reach().items():
                self._links.dial(link, address, anybody=True)
            while self._owing and (left := until - time.monotonic()) > 0:
                self._links.wait(left)
                self._links.work()
                while self._came:
                    self._take(*self._came.popleft())
        finally:
            self._links.close("it has ended the kept meshes")
        for one in self._owing.values():
            self._failed(one, "it does not answer")
        return self._problems

    def _reach(self) -> dict[str, Address]:
        """The addresses to dial, by link. Skips workers that have ended, with their meshes."""
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            ways = pool.map(partial(_way_to, through=self._through), self._owing.values())
            found = dict(zip(self._owing, ways, strict=True))
        dialled: dict[str, Address] = {}
        for link, way in found.items():
            if isinstance(way, Address):
                dialled[link] = way
                continue
            one = self._owing.pop(link)
            if way:
                self._failed(one, way)
        return dialled

    def _take(self, link: str, what: Sequence[Buffer] | Notice, size: int) -> None:
        if size >= 0:
            self._links.handled(link, size)
            self._heard(link, what)  # pyright: ignore[reportArgumentType]
        elif isinstance(what, PeerNamed):
            if what.dialled_as in self._owing:
                self._owing[link] = self._owing.pop(what.dialled_as)
        elif isinstance(what, LinkUp):
            if link in self._owing and not what.again:
                token, number = self._away.token, self._away.number + 1
                self._say(
                    link,
                    HoldSite(
                        1, os.getpid(), "the end of its session", os.uname().nodename,
                        self._liveness_s, number, token,
                    ),
                )  # fmt: skip
        elif isinstance(what, (PeerLost, PeerLeft, PeerRefused)) and link in self._owing:
            self._failed(self._owing.pop(link), what.why)

    def _heard(self, link: str, frames: Sequence[Buffer]) -> None:
        try:
            relay, payload = decode(frames)
            message, _ = decode(frames_within(payload))
        except FrameError as error:
            log.warning("dropped a message of %s: %s", link, error)
            return
        if not isinstance(relay, Relay) or link not in self._owing:
            return
        if isinstance(message, SiteIs):
            if message.refusal:  # it has nothing of the session
                log.info("%s: %s", self._owing.pop(link).address, message.refusal)
            else:
                self._say(link, LetSiteGo(1))
        elif isinstance(message, SiteFree):
            self._owing.pop(link)

    def _say(self, link: str, message: Message) -> None:
        first, *rest = encode(message)
        body = memoryview(first) if isinstance(first, bytearray) else first
        relay = Relay(AGENT, link, self._name, "")
        self._links.send(link, encode(relay, Payload(body, rest)))

    def _failed(self, one: WorkerRecord, why: str) -> None:
        self._problems[one] = why
