/**
 * A timeline of calls: a lane for each rank, a bar for each call, coloured by endpoint; and below it the same in words.
 *
 * It asks for calls only while it is open. Ranks record calls from the first question on, and stop soon after the last.
 * The picture is a canvas: it may have a hundred thousand bars. It is moved and zoomed by buttons, keys, and dragging.
 */

import { parseTimeline } from "./activity_protocol.js";
import { isRecorded } from "./controls.js";
import { button, count, download, element, pointText, setText } from "./dom.js";
import { CallStore, OVERLAP_S, endOf, labelEvery, liveStretch, panned, spanText, summaryOf, ticksOf, traceOf, zoomed } from "./timeline_state.js";

/** @typedef {import("./activity_protocol.js").Call} Call */
/** @typedef {import("./protocol.js").Mesh} Mesh */

const FIRST_S = 30;
const AXIS = 18; // pixels
const HIGHEST = 420; // pixels, of all lanes, unless there are more
const LINE = 12; // pixels, of a label
/** Readable on a light and on a dark page. */
const COLORS = ["#4c8bd6", "#e08a2e", "#3fa66b", "#b66bd0", "#c9a227", "#2aa7a7", "#d0628a", "#8a8f98"];
const FAILED = "#e5484d";

export class TimelineView {
  /** @param {import("./controls.js").Ask} ask */
  constructor(ask) {
    this._ask = ask;
    this.node = element("section", "mx-timeline", { "aria-label": "Timeline of calls" });
    this.node.hidden = true;
    this._canvas = element("canvas", "mx-canvas", {
      role: "img",
      tabindex: "0",
      "aria-label": "Calls by rank and time; arrow keys move, + and - zoom",
      "data-lm-suppress-shortcuts": "true",
    });
    this._isRecorded = isRecorded(ask);
    this._live = button(this._isRecorded ? "This time" : "Live", () => this._follow());
    const bar = element("div", "mx-bar", { role: "toolbar", "aria-label": "Stretch of time" });
    const named = (/** @type {string} */ sign, /** @type {string} */ name, /** @type {() => void} */ act) => {
      const made = button(sign, act);
      made.setAttribute("aria-label", name);
      made.title = name;
      return made;
    };
    bar.append(
      named("◀", "Earlier", () => this._pan(-0.5)),
      named("▶", "Later", () => this._pan(0.5)),
      named("+", "Zoom in", () => this._zoom(2)),
      named("−", "Zoom out", () => this._zoom(0.5)),
      this._live,
      named("Save", "Save the calls as a trace for ui.perfetto.dev", () => this._save()),
    );
    this._span = element("span", "mx-muted");
    bar.append(this._span);
    this._reading = element("p", "mx-reading mx-muted");
    this._table = element("table", "mx-endpoints");
    this.node.append(bar, this._canvas, this._reading, this._table);
    this._store = new CallStore();
    /** @type {import("./timeline_state.js").Stretch} */
    this._stretch = liveStretch(0, FIRST_S);
    /** @type {Mesh | null} */
    this._mesh = null;
    this._isAsking = false;
    this._isAskedAgain = false; // of a recording: another time was chosen while a question was under way
    this._answeredAt = 0; // of the page's clock, in milliseconds
    this._problem = "";
    /** @type {{x: number, y: number} | null} */
    this._pointer = null;
    this._listen();
  }

  /** Begin or end to show. */
  toggle() {
    this.node.hidden = !this.node.hidden;
    this.poll();
    this._draw();
  }

  /** @param {Mesh} mesh */
  update(mesh) {
    this._mesh = mesh;
  }

  /** Once a second. */
  tick() {
    if (!this.node.hidden) {
      this.poll();
      this._draw();
    }
  }

  /** Ask for the calls since the last answer. */
  poll() {
    if (this.node.hidden || this._mesh === null || this._mesh.state === "stopped") {
      return;
    }
    if (this._isAsking) {
      this._isAskedAgain = this._isRecorded; // a time of a recording is polled once
      return;
    }
    this._isAsking = true;
    const after_s = this._isRecorded ? 0 : Math.max(0, this._store.now - OVERLAP_S);
    this._ask({ do: "timeline", mesh: this._mesh.uid, after_s })
      .then((result) => {
        this._problem = "";
        if (this._isRecorded) {
          this._store = new CallStore(); // the time may lie before that of the last answer
        }
        this._store.add(parseTimeline(result));
        this._answeredAt = performance.now();
        this._draw();
      })
      .catch((/** @type {unknown} */ error) => {
        this._problem = error instanceof Error ? error.message : String(error);
        this._say();
      })
      .finally(() => {
        this._isAsking = false;
        if (this._isAskedAgain) {
          this._isAskedAgain = false;
          this.poll();
        }
      });
  }

  /** The kernel's time now, or the time that a recording shows. */
  _now() {
    const isEnded = this._isRecorded || this._mesh === null || this._mesh.state === "stopped" || this._store.now === 0;
    return isEnded ? this._store.now : this._store.now + (performance.now() - this._answeredAt) / 1000;
  }

  _follow() {
    this._stretch = liveStretch(this._now(), this._stretch.to - this._stretch.from);
    this._draw();
  }

  /** Download the known calls. */
  _save() {
    if (this._mesh !== null) {
      const trace = traceOf(this._mesh, this._store.calls, this._now());
      download(`${this._mesh.name}-calls.json`, JSON.stringify(trace));
    }
  }

  /** @param {number} share of the stretch */
  _pan(share) {
    this._stretch = panned(this._stretch, share);
    this._draw();
  }

  /**
   * @param {number} factor
   * @param {number} [at] the moment that stays in its place
   */
  _zoom(factor, at) {
    const { from, to } = this._stretch;
    this._stretch = zoomed(this._stretch, factor, at ?? (from + to) / 2);
    this._draw();
  }

  _listen() {
    const canvas = this._canvas;
    /** @type {number | null} */
    let dragged = null;
    canvas.addEventListener("pointerdown", (event) => {
      dragged = event.offsetX;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => (dragged = null));
    canvas.addEventListener("pointermove", (event) => {
      if (dragged !== null && event.offsetX !== dragged) {
        this._pan((dragged - event.offsetX) / this._room().width);
        dragged = event.offsetX;
      }
      this._pointer = { x: event.offsetX, y: event.offsetY };
      this._say();
    });
    canvas.addEventListener("pointerleave", () => {
      this._pointer = null;
      this._say();
    });
    canvas.addEventListener("dblclick", (event) => this._zoom(4, this._momentAt(event.offsetX)));
    // A plain wheel scrolls the notebook.
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) {
        event.preventDefault();
        this._zoom(event.deltaY + event.deltaX < 0 ? 1.5 : 1 / 1.5, this._momentAt(event.offsetX));
      }
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this._onKey(event));
    if (typeof ResizeObserver !== "undefined") {
      new ResizeObserver(() => this._draw()).observe(this.node);
    }
  }

  /** @param {KeyboardEvent} event */
  _onKey(event) {
    /** @type {Readonly<Record<string, () => void>>} */
    const acts = {
      ArrowLeft: () => this._pan(-0.2),
      ArrowRight: () => this._pan(0.2),
      "+": () => this._zoom(1.5),
      "=": () => this._zoom(1.5),
      "-": () => this._zoom(1 / 1.5),
      End: () => this._follow(),
    };
    const act = acts[event.key];
    if (act !== undefined && !event.ctrlKey && !event.metaKey && !event.altKey) {
      act();
      event.preventDefault();
      event.stopPropagation();
    }
  }

  /** The sizes of the picture in pixels. */
  _room() {
    const rows = this._mesh?.rows ?? [];
    const lane = rows.length > HIGHEST ? 1 : Math.max(2, Math.min(16, Math.floor(HIGHEST / Math.max(1, rows.length))));
    const longest = Math.max(0, ...rows.map((row) => pointText(row.point).length));
    const label = Math.min(160, longest * 7 + 8);
    const width = Math.max(50, this._canvas.clientWidth - label);
    return { lane, label, width, height: lane * rows.length + AXIS };
  }

  /** @param {number} x in the canvas */
  _momentAt(x) {
    const { label, width } = this._room();
    return this._stretch.from + ((x - label) / width) * (this._stretch.to - this._stretch.from);
  }

  _draw() {
    if (this.node.hidden || this._mesh === null) {
      return;
    }
    if (this._stretch.isLive) {
      this._stretch = liveStretch(this._now(), this._stretch.to - this._stretch.from);
    }
    this._live.setAttribute("aria-pressed", String(this._stretch.isLive));
    setText(this._span, `${spanText(this._stretch.to - this._stretch.from)}, to ${clockText(this._stretch.to, 1)}`);
    this._paint(this._mesh);
    this._list();
    this._say();
  }

  /** @param {Mesh} mesh */
  _paint(mesh) {
    const canvas = this._canvas;
    const { lane, label, width, height } = this._room();
    const ratio = globalThis.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round((label + width) * ratio);
    canvas.height = Math.round(height * ratio);
    const draw = canvas.getContext("2d");
    if (draw === null) {
      return;
    }
    const style = getComputedStyle(this.node);
    const muted = style.getPropertyValue("--mx-muted").trim() || "#6b7280";
    const line = style.getPropertyValue("--mx-line").trim() || "#d0d5db";
    draw.scale(ratio, ratio);
    draw.font = "11px sans-serif";
    draw.textBaseline = "middle";
    const { from, to } = this._stretch;
    const x = (/** @type {number} */ at) => label + ((at - from) / (to - from)) * width;
    const { step, at } = ticksOf(this._stretch, Math.floor(width / 90));
    for (const moment of at) {
      draw.fillStyle = line;
      draw.fillRect(x(moment), 0, 1, height - AXIS);
      draw.fillStyle = muted;
      const text = clockText(moment, step);
      draw.fillText(text, Math.min(x(moment) + 2, label + width - draw.measureText(text).width), height - AXIS / 2);
    }
    const places = new Map(mesh.rows.map((row, y) => [row.rank, y]));
    const every = labelEvery(Math.ceil(LINE / lane), Object.values(mesh.sizes).at(-1) ?? 1);
    draw.fillStyle = muted;
    mesh.rows.forEach((row, y) => {
      if (y % every === 0) {
        draw.fillText(pointText(row.point), 0, y * lane + Math.max(lane, LINE) / 2, label - 6);
      }
    });
    this._paintCalls(draw, places, lane, label, x);
  }

  /**
   * @param {CanvasRenderingContext2D} draw
   * @param {ReadonlyMap<number, number>} places
   * @param {number} lane
   * @param {number} label
   * @param {(at: number) => number} x
   */
  _paintCalls(draw, places, lane, label, x) {
    const { from, to } = this._stretch;
    const now = this._now();
    const gap = lane > 4 ? 1 : 0;
    for (const call of this._store.calls) {
      const y = places.get(call.rank);
      const end = endOf(call, now);
      if (y === undefined || end < from || call.began > to) {
        continue;
      }
      const left = Math.max(label, x(call.began));
      draw.fillStyle = call.failed ? FAILED : this._color(call.name);
      draw.globalAlpha = call.took === null ? 0.55 : 1;
      draw.fillRect(left, y * lane, Math.max(1, x(Math.min(end, to)) - left - (gap && 0.5)), lane - gap);
    }
    draw.globalAlpha = 1;
  }

  /** @param {string} name */
  _color(name) {
    return COLORS[this._store.names.indexOf(name) % COLORS.length] ?? "#8a8f98";
  }

  /** The endpoints of the stretch, in words. */
  _list() {
    const now = this._now();
    const found = summaryOf(this._store.calls, this._stretch, now);
    const points = new Map(this._mesh?.rows.map((row) => [row.rank, pointText(row.point) || "rank 0"]));
    const head = element("tr");
    head.append(...["endpoint", "calls", "mean", "longest"].map((name) => element("th", "", { scope: "col" }, name)));
    const rows = found.map((one) => {
      const row = element("tr");
      const name = element("td");
      const swatch = element("span", "mx-swatch", { "aria-hidden": "true" });
      swatch.style.background = this._color(one.name);
      name.append(swatch, one.name);
      const failed = one.failed > 0 ? `, ${one.failed.toLocaleString("en")} failed` : "";
      const longest = endOf(one.longest, now) - one.longest.began;
      const runs = one.longest.took === null ? " so far" : "";
      row.append(
        name,
        element("td", "", {}, `${one.calls.toLocaleString("en")}${failed}`),
        element("td", "", {}, spanText(one.seconds / one.calls)),
        element("td", "", {}, `${spanText(longest)}${runs} at ${points.get(one.longest.rank) ?? "?"}`),
      );
      return row;
    });
    this._table.hidden = found.length === 0;
    this._table.replaceChildren(head, ...rows);
  }

  /** The line below the picture: the call that is pointed at, or what there is. */
  _say() {
    const call = this._pointed();
    if (call !== null) {
      const row = this._mesh?.rows.find(({ rank }) => rank === call.rank);
      const took = call.took === null ? `for ${spanText(this._now() - call.began)}, running` : spanText(call.took);
      const failed = call.failed ? ", failed" : "";
      const where = row === undefined ? "" : pointText(row.point);
      setText(this._reading, `${where} ${call.name}: ${took}${failed}, from ${clockText(call.began, 0.001)}`.trim());
    } else if (this._problem) {
      setText(this._reading, this._problem);
    } else {
      const known = this._store.calls;
      const calls = known.length;
      const cut = this._store.isCut ? "; some ranks had more than are kept" : "";
      const none = "Calls are recorded from now on. Drag or use the arrow keys to move, + and - to zoom.";
      const lost = this._lost(known);
      setText(this._reading, calls === 0 ? none : `${count(calls, "call")} known${cut}${lost}. Point at one, drag to move.`);
    }
  }

  /**
   * Ranks that have failed and of which no call is known, in words: a process keeps its calls.
   * @param {readonly Call[]} calls
   */
  _lost(calls) {
    const ranks = new Set(calls.map(({ rank }) => rank));
    const lost = this._mesh?.rows.filter(({ rank, state }) => state === "failed" && !ranks.has(rank)).length ?? 0;
    const processes = lost === 1 ? "its process" : "their processes";
    return lost === 0 ? "" : `; those of ${count(lost, "failed rank")} are lost with ${processes}`;
  }

  /** @returns {Call | null} */
  _pointed() {
    if (this._pointer === null || this._mesh === null) {
      return null;
    }
    const { lane, width } = this._room();
    const row = this._mesh.rows[Math.floor(this._pointer.y / lane)];
    const at = this._momentAt(this._pointer.x);
    const slack = (2 / width) * (this._stretch.to - this._stretch.from);
    const now = this._now();
    const near = this._store.calls.filter(
      (call) => call.rank === row?.rank && call.began - slack <= at && at <= endOf(call, now) + slack,
    );
    // Of calls that overlap, the one that began last lies on top.
    return near.sort((a, b) => b.began - a.began)[0] ?? null;
  }
}

/**
 * "12:03:04", with as many digits as a step needs.
 * @param {number} seconds since 1970
 * @param {number} step
 */
function clockText(seconds, step) {
  const date = new Date(seconds * 1000);
  const two = (/** @type {number} */ number) => String(number).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const digits = step >= 1 ? 0 : Math.min(6, Math.ceil(-Math.log10(step)));
  return digits === 0 ? time : `${time}${(seconds % 1).toFixed(digits).replace(/^[01]/, "")}`;
}
