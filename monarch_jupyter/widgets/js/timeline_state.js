/** The calls that a timeline knows, and the stretch of time that it shows. Pure. */

import { pointText } from "./dom.js";

/** @typedef {import("./activity_protocol.js").Call} Call */

const KEEP_S = 600;
const MOST_CALLS = 100_000;
/** A rank's answer may overlap the one before by so much: clocks of hosts differ. */
export const OVERLAP_S = 1;
const SHORTEST_S = 0.000_1;

/** Calls by rank, each once, however often an answer has it. */
export class CallStore {
  constructor() {
    /** @type {Map<string, Call>} */
    this._calls = new Map();
    /** @type {Call[]} */
    this._running = [];
    /** @type {string[]} in the order in which they were first seen */
    this.names = [];
    this.now = 0;
    this.isCut = false;
  }

  /** All calls, those that run included. */
  get calls() {
    return [...this._calls.values(), ...this._running];
  }

  /** @param {import("./activity_protocol.js").Timeline} timeline */
  add({ now, calls, cut }) {
    this.now = now;
    this.isCut = this.isCut || cut > 0;
    this._running = calls.filter(({ took }) => took === null);
    for (const call of calls) {
      if (!this.names.includes(call.name)) {
        this.names.push(call.name);
      }
      if (call.took !== null) {
        this._calls.set(`${call.rank} ${call.began} ${call.name}`, call);
      }
    }
    let excess = this._calls.size - MOST_CALLS;
    for (const [key, call] of this._calls) {
      // Maps keep the order of insertion, so the oldest come first.
      if (excess <= 0 && endOf(call, now) > now - KEEP_S) {
        break;
      }
      this._calls.delete(key);
      excess -= 1;
    }
  }
}

/**
 * @param {Call} call
 * @param {number} now
 */
export function endOf(call, now) {
  return call.took === null ? Math.max(now, call.began) : call.began + call.took;
}

/** A stretch of time; `isLive`: its end follows the kernel's time. @typedef {{from: number, to: number, isLive: boolean}} Stretch */

/**
 * The last `seconds`, as time goes on.
 * @param {number} now
 * @param {number} seconds
 * @returns {Stretch}
 */
export function liveStretch(now, seconds) {
  return { from: now - seconds, to: now, isLive: true };
}

/**
 * Shorter by `factor` (longer, if below 1), around a moment; a live one stays live and ends now.
 * @param {Stretch} stretch
 * @param {number} factor
 * @param {number} at
 * @returns {Stretch}
 */
export function zoomed({ from, to, isLive }, factor, at) {
  const length = Math.max(SHORTEST_S, Math.min(KEEP_S, (to - from) / factor));
  if (isLive) {
    return { from: to - length, to, isLive };
  }
  const share = (at - from) / (to - from);
  return { from: at - share * length, to: at + (1 - share) * length, isLive };
}

/**
 * Earlier or later by a share of its length; it follows time no more.
 * @param {Stretch} stretch
 * @param {number} share
 * @returns {Stretch}
 */
export function panned({ from, to }, share) {
  const by = (to - from) * share;
  return { from: from + by, to: to + by, isLive: false };
}

/**
 * Moments of an axis: round numbers of seconds, at most `most`.
 * @param {Stretch} stretch
 * @param {number} most
 * @returns {{step: number, at: number[]}}
 */
export function ticksOf({ from, to }, most) {
  const least = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(least));
  const round = [1, 2, 5, 10].map((unit) => unit * power);
  const long = least > 5 ? [10, 15, 30, 60, 120, 300] : round;
  const step = long.find((one) => one >= least) ?? 600;
  const first = Math.ceil(from / step);
  const number = Math.max(0, Math.floor(to / step) - first + 1);
  return { step, at: Array.from({ length: number }, (_, i) => (first + i) * step) };
}

/**
 * Every how many ranks a label is written: at least `least`, and so that labels begin rows of the last dim, or parts of
 * them that are alike, if that is not too far apart.
 * @param {number} least
 * @param {number} inner the size of the last dim
 */
export function labelEvery(least, inner) {
  for (let every = least; every <= 2 * least; every += 1) {
    if (every % inner === 0 || inner % every === 0) {
      return every;
    }
  }
  return least;
}

/**
 * What each endpoint did in a stretch: calls, seconds, the longest call. By seconds, most first.
 * @param {readonly Call[]} calls
 * @param {Stretch} stretch
 * @param {number} now
 */
export function summaryOf(calls, { from, to }, now) {
  /** @type {Map<string, {name: string, calls: number, failed: number, seconds: number, longest: Call}>} */
  const found = new Map();
  for (const call of calls) {
    const end = endOf(call, now);
    if (end < from || call.began > to) {
      continue;
    }
    const one = found.get(call.name) ?? { name: call.name, calls: 0, failed: 0, seconds: 0, longest: call };
    one.calls += 1;
    one.failed += call.failed ? 1 : 0;
    one.seconds += end - call.began;
    if (end - call.began > endOf(one.longest, now) - one.longest.began) {
      one.longest = call;
    }
    found.set(call.name, one);
  }
  return [...found.values()].sort((a, b) => b.seconds - a.seconds);
}

/**
 * "12 ms", "1.3 s"
 * @param {number} seconds
 */
export function spanText(seconds) {
  if (seconds < 0.001) {
    return `${(seconds * 1e6).toFixed(0)} µs`;
  }
  if (seconds < 1) {
    return `${Number((seconds * 1000).toPrecision(3))} ms`;
  }
  return `${seconds < 100 ? Number(seconds.toPrecision(3)) : Math.round(seconds)} s`;
}

/**
 * The calls as a trace in Chrome's JSON format, which ui.perfetto.dev opens: a process for the mesh, a thread for each
 * rank. A call that runs ends now.
 * @param {{name: string, rows: readonly {rank: number, point: Readonly<Record<string, number>>}[]}} mesh
 * @param {readonly Call[]} calls
 * @param {number} now seconds since 1970
 */
export function traceOf(mesh, calls, now) {
  const about = (/** @type {string} */ name, /** @type {string} */ text, tid = 0) => ({ ph: "M", name, pid: 1, tid, args: { name: text } });
  const threads = mesh.rows.map(({ rank, point }) => about("thread_name", pointText(point) || `rank ${rank}`, rank + 1));
  const bars = calls.map((call) => ({
    ph: "X",
    cat: "endpoint",
    name: call.name,
    pid: 1,
    tid: call.rank + 1,
    ts: Math.round(call.began * 1e6),
    dur: Math.round((endOf(call, now) - call.began) * 1e6),
    args: { rank: call.rank, state: call.took === null ? "running" : call.failed ? "failed" : "complete" },
  }));
  return { displayTimeUnit: "ms", traceEvents: [about("process_name", mesh.name), ...threads, ...bars] };
}
