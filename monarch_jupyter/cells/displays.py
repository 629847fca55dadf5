"""Shows displays of ranks in the cells that caused them.

Runs in: the kernel. A thread of this module reads the port that ranks send to.
Owns: that port and the thread, from the first `port` until `close`.
Invariants: each display is shown once, in the order of its rank, or counted and its text stored;
equal displays of several ranks are shown once, and a display waits for equal ones as long as a line
does.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from monarch import frontend, observe
from monarch.actor import ActorMesh, Channel, Future, Port, PortReceiver, ProcMesh, SupervisionError
from monarch.frontend import Fold, OutputFolder
from monarch.observe import OutputLine
from monarch_jupyter.cells import output
from monarch_jupyter.cells.output import ranks_of
from monarch_jupyter.ranks.display import Bundle, Redirected, Route
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.lines import fold_tag

Rank = tuple[str, str, int, dict[str, int]]
"""The name and the uid of its mesh, its number and its point."""
Display = tuple[int, Rank, Bundle]
"""The number of the cell, the rank that displays, and the bundle."""
FLUSH_TIMEOUT = 5.0
PATIENCE = 2.0
MOST = 200
"""Displays that one cell shows; a page with many more is slow to scroll, and slow to load again."""
RATE, BURST = 800_000, 2_000_000
"""Bytes a second, and bytes at once."""
_FLUSH, _END = "flush", "end"

log = logging.getLogger("monarch.jupyter.displays")
Show = Callable[[dict[str, Any], int], None]


class Displays:
    """Shows the displays that ranks send, equal ones of several ranks once."""

    def __init__(
        self,
        show: Show,
        note: Callable[[str, int], None] = lambda text, origin: None,
        keep: Callable[[Sequence[OutputLine]], None] = lambda lines: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`show` puts a mime bundle into a cell; `note` replaces the last such line of a cell;
        `keep` stores the text of displays that are not shown.
        """
        self._show, self._note, self._keep = show, note, keep
        self._pace = Pace(clock)
        self._folder = OutputFolder()
        self._bundles: dict[str, Bundle] = {}  # by the text that stands for each in the folder
        self._ranks: dict[tuple[str, tuple[int, ...]], int] = {}  # by mesh and point
        self._shown: dict[int, int] = {}  # by origin: how many, and how many more there were
        self._hidden: dict[int, int] = {}
        self._lock = threading.Lock()
        # Guarded by _lock. The port is None before the first use, and after its session has ended.
        self._port: Port[Any] | None = None
        self._flushes: list[threading.Event] = []
        self._thread: threading.Thread | None = None

    def route(self, _mesh: ProcMesh) -> Route:
        """The route that travels with each spawned actor and directs its displays here."""
        # An actor must not fail because the notebook is gone.
        return Route(frontend.unheeded(self.port()))

    def port(self) -> Port[Any]:
        """Where ranks send a `Display` to."""
        with self._lock:
            if self._port is None:
                port, receiver = Channel[Any].open()
                self._port = port
                self._thread = threading.Thread(
                    target=self._run, args=(receiver,), name="monarch-displays", daemon=True
                )
                self._thread.start()
            return self._port

    def flush(self) -> None:
        """Return when every display is shown that ranks sent before the answers received so far."""
        with self._lock:
            port = self._port
            if port is None:
                return
            shown = threading.Event()
            self._flushes.append(shown)
        port.send(_FLUSH)
        shown.wait(FLUSH_TIMEOUT)

    def close(self) -> None:
        """End the thread. Idempotent."""
        with self._lock:
            port, thread = self._port, self._thread
        if port is not None and thread is not None:
            port.send(_END)
            thread.join(FLUSH_TIMEOUT)

    def _run(self, receiver: PortReceiver[Any]) -> None:
        deadline: float | None = None
        try:
            while True:
                wait = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    item = receiver.recv().get(wait)
                except TimeoutError:
                    self._show_folds(self._folder.take_all())
                    deadline = None
                    continue
                if isinstance(item, str):
                    self._show_folds(self._folder.take_all())
                    deadline = None
                    if item == _END:
                        return
                    self._release_flushes()
                    continue
                self.add(item)
                if not len(self._folder):
                    deadline = None
                elif deadline is None:
                    deadline = time.monotonic() + output.HOLD
        except RuntimeError as error:
            log.debug("displays end: %s", error)  # the session has ended, and its ports
        finally:
            with self._lock:
                self._port = None
            self._release_flushes()

    def add(self, display: Display) -> None:
        """Add a display; it is shown as soon as every rank of its mesh has sent the same one."""
        origin, (mesh, uid, rank, point), bundle = display
        text = json.dumps(bundle, sort_keys=True)
        self._bundles[text] = bundle
        self._ranks[uid, tuple(point.values())] = rank
        self._folder.add([OutputLine(mesh, uid, rank, point, "stdout", text, origin)])
        self._show_folds(self._folder.take_complete(ranks_of))

    def _release_flushes(self) -> None:
        with self._lock:
            flushes, self._flushes = self._flushes, []
        for flush in flushes:
            flush.set()

    def _show_folds(self, folds: Sequence[Fold]) -> None:
        several = len(observe.meshes()) > 1 if folds else False
        for fold in folds:
            bundle = self._bundles[fold.text]
            try:
                self._show_one(fold, bundle, several)
            except Exception:  # from the code that renders it; the others are still shown
                log.warning("a display of a rank could not be shown", exc_info=True)
        if not len(self._folder):
            self._bundles.clear()

    def _show_one(self, fold: Fold, bundle: Bundle, several: bool) -> None:
        shown = self._shown.get(fold.origin, 0)
        if shown < MOST:
            self._shown[fold.origin] = shown + 1
            self._pace.spend(len(fold.text))
            where = fold_tag(fold, several).strip("[]")
            self._show(dict(tagged(where, bundle)), fold.origin)
            return
        text = bundle["text/plain"]
        mesh, uid = fold.mesh, fold.mesh_uid
        ranks = [(self._ranks[uid, tuple(point.values())], point) for point in fold.points]
        self._keep([OutputLine(mesh, uid, r, p, "stdout", text, fold.origin) for r, p in ranks])
        hidden = self._hidden[fold.origin] = self._hidden.get(fold.origin, 0) + len(fold.points)
        self._note(
            f"monarch: {hidden:,} more displays are not shown here; `%monarch logs {mesh}` has "
            "their text",
            fold.origin,
        )


class Pace:
    """Keeps displays within the rate that a Jupyter server passes on to the page: 1 MB a second.

    The server drops the rest. Its window of three seconds allows for a burst.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._read_at = clock()

    def delay(self, size: int) -> float:
        """Seconds to wait before sending `size` bytes, which count as sent then."""
        now = self._clock()
        self._left = min(float(BURST), self._left + RATE * (now - self._read_at))
        self._read_at = now
        # A display larger than a burst waits until the whole burst is available.
        wait = max(0.0, (min(size, BURST) - self._left) / RATE)
        self._left -= size
        return wait

    def spend(self, size: int) -> None:
        """Wait until `size` bytes may be sent."""
        wait = self.delay(size)
        if wait:
            threading.Event().wait(wait)


def tagged(where: str, bundle: Bundle) -> Bundle:
    """The bundle with the rank's name in it, reduced to the form that a page prefers."""
    tag = f"[{where}]" if where else ""
    plain = f"{tag} {bundle['text/plain']}".strip()
    styled = _styled(bundle)
    if styled is not None:
        head = html.element("div", tag, style=html.MUTED) if tag else ""
        return {"text/plain": plain, "text/html": html.card(head, styled)}
    for mime in ("text/markdown", "text/latex"):
        if mime in bundle:
            return {"text/plain": plain, mime: f"{tag}\n\n{bundle[mime]}".strip()}
    return {"text/plain": plain}


def _styled(bundle: Bundle) -> Html | None:
    if "text/html" in bundle:
        return Html(bundle["text/html"])
    if "image/svg+xml" in bundle:
        return Html(bundle["image/svg+xml"])
    for mime in ("image/png", "image/jpeg"):
        if mime in bundle:
            source = f"data:{mime};base64,{bundle[mime]}"
            return html.element("img", src=source, alt=bundle["text/plain"])
    return None


_shared: Displays | None = None


def shared_displays() -> Displays | None:
    """The displays of the loaded extension; None if it is not loaded."""
    return _shared


def share_displays(displays: Displays | None) -> None:
    """Make these the displays that ranks send to."""
    global _shared
    _shared = displays


def redirect(meshes: Sequence[ProcMesh]) -> None:
    """Direct displays of ranks here from now on, if actors already live on them.

    This spawns an actor that ends at once. It spawns one only beside other actors, since the first
    actor of a process has the thread that receives signals; other processes get the route with
    their next actor. Returns when the ranks have the route, or after `PATIENCE` seconds.
    """
    stops: list[Future[None]] = []
    for mesh in meshes:
        if not mesh.actor_names:
            continue
        try:
            stops.append(cast("ActorMesh", mesh.spawn("displays", Redirected)).stop())
        except SupervisionError:
            log.debug(
                "the ranks of %s were not told where to send displays", mesh.name, exc_info=True
            )
    deadline = time.monotonic() + PATIENCE
    try:
        for future in stops:
            future.get(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        log.debug("some ranks have not confirmed where to send displays", exc_info=True)
