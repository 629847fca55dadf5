/** Answers about what ranks use and which calls they have run: types and parsers. No I/O. */

import { WireError, each, maybeNumbers, number, object, orNull, text } from "./fields.js";

/**
 * The figures of all ranks, by rank, `age_s` seconds before the answer; null where they are not known. `cpu` and `gpu`
 * are per cent of one processor and one device, `memory` and `gpu_memory` MiB.
 * @typedef {object} Sample
 * @property {number} number
 * @property {number} age_s
 * @property {readonly (number | null)[]} cpu
 * @property {readonly (number | null)[]} memory
 * @property {readonly (number | null)[]} gpu
 * @property {readonly (number | null)[]} gpu_memory
 */
/** @typedef {"cpu" | "memory" | "gpu" | "gpu_memory"} Measure */
/** `has_gpus`: any rank uses a device. @typedef {{has_gpus: boolean, samples: readonly Sample[]}} Usage */

/** One call: `began` in seconds since 1970; `took` in seconds, null while it runs. @typedef {{rank: number, name: string, began: number, took: number | null, failed: boolean}} Call */
/**
 * `now`: the kernel's time, in seconds since 1970. `cut`: so many ranks had more calls; `missing` did not answer.
 * @typedef {{now: number, calls: readonly Call[], cut: number, missing: number}} Timeline
 */

/**
 * @param {unknown} data the result of "usage"
 * @returns {Usage}
 */
export function parseUsage(data) {
  const fields = object(data, "usage");
  return { has_gpus: fields.has_gpus === true, samples: each(parseSample, fields.samples, "samples") };
}

/** @type {(data: unknown, at: string) => Sample} */
function parseSample(data, at) {
  const fields = object(data, at);
  return {
    number: number(fields.number, `${at}.number`),
    age_s: number(fields.age_s, `${at}.age_s`),
    cpu: maybeNumbers(fields.cpu, `${at}.cpu`),
    memory: maybeNumbers(fields.memory, `${at}.memory`),
    gpu: maybeNumbers(fields.gpu, `${at}.gpu`),
    gpu_memory: maybeNumbers(fields.gpu_memory, `${at}.gpu_memory`),
  };
}

/**
 * @param {unknown} data the result of "timeline"
 * @returns {Timeline}
 */
export function parseTimeline(data) {
  const fields = object(data, "timeline");
  const names = each(text, fields.names, "names");
  return {
    now: number(fields.now, "now"),
    calls: each((call, at) => parseCall(call, at, names), fields.calls, "calls"),
    cut: number(fields.cut, "cut"),
    missing: number(fields.missing, "missing"),
  };
}

/** @type {(data: unknown, at: string, names: readonly string[]) => Call} */
function parseCall(data, at, names) {
  if (!Array.isArray(data)) {
    throw new WireError(`${at}: expected a list`);
  }
  const [rank, place, began, took, failed] = /** @type {unknown[]} */ (data);
  return {
    rank: number(rank, `${at}[0]`),
    name: names[number(place, `${at}[1]`)] ?? "",
    began: number(began, `${at}[2]`),
    took: orNull(number, took, `${at}[3]`),
    failed: failed === true,
  };
}
