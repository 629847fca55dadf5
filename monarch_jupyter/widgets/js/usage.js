/** What each rank of a mesh has used lately, read while a view shows it; and pictures of it. */

import { parseUsage } from "./activity_protocol.js";
import { element, setAttribute, setText } from "./dom.js";

/** @typedef {import("./activity_protocol.js").Measure} Measure */
/** @typedef {import("./activity_protocol.js").Sample} Sample */

/** @type {readonly {measure: Measure, name: string, unit: string}[]} */
export const MEASURES = [
  { measure: "cpu", name: "CPU", unit: "%" },
  { measure: "memory", name: "memory", unit: "MiB" },
  { measure: "gpu", name: "GPU load", unit: "%" },
  { measure: "gpu_memory", name: "GPU memory", unit: "MiB" },
];
const MOST = 300; // samples that a page keeps
const WIDTH = 100;
const HEIGHT = 20;

/** The samples of one mesh. Asks for new ones only when it is told to. */
export class UsageFeed {
  /**
   * @param {string} mesh uid
   * @param {import("./controls.js").Ask} ask
   * @param {() => void} onSamples
   */
  constructor(mesh, ask, onSamples) {
    this._mesh = mesh;
    this._ask = ask;
    this._onSamples = onSamples;
    this._isAsking = false;
    /** @type {Sample[]} */
    this.samples = [];
    this.hasGpus = false;
  }

  /** Ask for the samples since the last ones, unless an answer is still due. */
  poll() {
    if (this._isAsking) {
      return;
    }
    this._isAsking = true;
    const after = this.samples[this.samples.length - 1]?.number ?? 0;
    this._ask({ do: "usage", mesh: this._mesh, after })
      .then((result) => {
        const { has_gpus, samples } = parseUsage(result);
        this.hasGpus = has_gpus;
        this.samples = [...this.samples, ...samples].slice(-MOST);
        if (samples.length > 0) {
          this._onSamples();
        }
      })
      .catch(() => undefined) // The kernel is gone or busy ending: the last figures stay.
      .finally(() => {
        this._isAsking = false;
      });
  }

  /**
   * The figures of one rank, oldest first.
   * @param {Measure} measure
   * @param {number} rank
   */
  series(measure, rank) {
    return this.samples.map((sample) => sample[measure][rank] ?? null);
  }

  /**
   * The newest figure of each rank.
   * @param {Measure} measure
   * @returns {readonly (number | null)[]}
   */
  newest(measure) {
    return this.samples[this.samples.length - 1]?.[measure] ?? [];
  }
}

/**
 * The path of a line through figures, from the left to the right; a gap where one is not known. Pure.
 * @param {readonly (number | null)[]} figures
 * @param {number} top the figure at the upper edge
 */
export function pathOf(figures, top) {
  const step = WIDTH / Math.max(1, figures.length - 1);
  let isDrawn = false;
  const parts = figures.map((figure, at) => {
    if (figure === null) {
      isDrawn = false;
      return "";
    }
    const y = HEIGHT - (Math.min(figure, top) / (top || 1)) * HEIGHT;
    const part = `${isDrawn ? "L" : "M"}${(at * step).toFixed(1)} ${y.toFixed(1)}`;
    isDrawn = true;
    return part;
  });
  return parts.join("");
}

/**
 * "87 %", "1.5 GiB"
 * @param {number | null | undefined} figure
 * @param {string} unit
 */
export function figureText(figure, unit) {
  if (figure === null || figure === undefined) {
    return "unknown";
  }
  return unit === "MiB" && figure >= 1024 ? `${(figure / 1024).toFixed(1)} GiB` : `${figure} ${unit}`;
}

/** A small line of figures over time. */
export class Sparkline {
  constructor() {
    const namespace = "http://www.w3.org/2000/svg";
    this.node = document.createElementNS(namespace, "svg");
    this._line = document.createElementNS(namespace, "path");
    this.node.setAttribute("class", "mx-spark");
    this.node.setAttribute("viewBox", `0 -1 ${WIDTH} ${HEIGHT + 2}`);
    this.node.setAttribute("preserveAspectRatio", "none");
    this.node.setAttribute("aria-hidden", "true");
    this.node.append(this._line);
  }

  /**
   * @param {readonly (number | null)[]} figures
   * @param {number} top
   */
  show(figures, top) {
    setAttribute(this._line, "d", pathOf(figures, top));
  }
}

/** The figures of one rank: a line for each measure, with the newest and the highest. */
export class RankUsage {
  constructor() {
    this.node = element("div", "mx-usage", { role: "list", "aria-label": "Use of processor and memory" });
    this._rows = MEASURES.map(({ measure, name, unit }) => {
      const row = element("div", "mx-usage-row", { role: "listitem" });
      const spark = new Sparkline();
      const now = element("span", "mx-usage-now");
      const most = element("span", "mx-muted");
      row.append(element("span", "mx-muted", {}, name), spark.node, now, most);
      this.node.append(row);
      return { measure, unit, row, spark, now, most };
    });
  }

  /**
   * @param {UsageFeed} feed
   * @param {number} rank
   */
  show(feed, rank) {
    const oldest = feed.samples[0]?.age_s ?? 0;
    this.node.hidden = feed.samples.length === 0;
    for (const { measure, unit, row, spark, now, most } of this._rows) {
      const figures = feed.series(measure, rank);
      const known = figures.filter((figure) => figure !== null);
      const highest = Math.max(0, ...known);
      // A measure of devices has its place where there are any.
      row.hidden = known.length === 0 && (measure === "gpu" || measure === "gpu_memory");
      const isLoad = measure === "cpu" || measure === "gpu";
      spark.show(figures, Math.max(highest, isLoad ? 100 : 1));
      setText(now, figureText(figures[figures.length - 1], unit));
      const span = Math.max(oldest, feed.samples.length);
      setText(most, known.length === 0 ? "" : `at most ${figureText(highest, unit)} in ${Math.round(span)} s`);
    }
  }
}
