/**
 * Reads JSON field by field: the typed value, or a WireError that names the invalid field. Pure.
 */

/** Raised for an invalid message, with the place in it. */
export class WireError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = "WireError";
  }
}

/** @param {unknown} value */
export function show(value) {
  return value === undefined ? "nothing" : JSON.stringify(value);
}

/** @type {(value: unknown, at: string) => Record<string, unknown>} */
export function object(value, at) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new WireError(`${at}: expected an object, got ${show(value)}`);
  }
  return /** @type {Record<string, unknown>} */ (value);
}

/**
 * @template T
 * @param {(value: unknown, at: string) => T} read
 * @param {unknown} value
 * @param {string} at
 * @returns {T[]}
 */
export function each(read, value, at) {
  if (!Array.isArray(value)) {
    throw new WireError(`${at}: expected a list, got ${show(value)}`);
  }
  return value.map((item, i) => read(item, `${at}[${i}]`));
}

/** @type {(value: unknown, at: string) => string} */
export function text(value, at) {
  if (typeof value !== "string") {
    throw new WireError(`${at}: expected a string, got ${show(value)}`);
  }
  return value;
}

/** @type {(value: unknown, at: string) => number} */
export function number(value, at) {
  if (typeof value !== "number") {
    throw new WireError(`${at}: expected a number, got ${show(value)}`);
  }
  return value;
}

/** @type {(value: unknown, at: string) => Record<string, number>} */
export function sizes(value, at) {
  const entries = Object.entries(object(value, at));
  return Object.fromEntries(entries.map(([key, item]) => [key, number(item, `${at}.${key}`)]));
}

/** @type {(value: unknown, at: string) => Record<string, number[]>} */
export function lists(value, at) {
  const entries = Object.entries(object(value, at));
  return Object.fromEntries(entries.map(([key, item]) => [key, each(number, item, `${at}.${key}`)]));
}

/** @type {(value: unknown, at: string) => (number | null)[]} */
export function maybeNumbers(value, at) {
  return each((item, place) => orNull(number, item, place), value, at);
}

/**
 * @template {string} T
 * @param {readonly T[]} allowed
 * @param {unknown} value
 * @param {string} at
 * @returns {T}
 */
export function oneOf(allowed, value, at) {
  const found = allowed.find((name) => name === value);
  if (found === undefined) {
    throw new WireError(`${at}: expected one of ${allowed.join(", ")}, got ${show(value)}`);
  }
  return found;
}

/**
 * @template T
 * @param {(value: unknown, at: string) => T} read
 * @param {unknown} value
 * @param {string} at
 * @returns {T | null}
 */
export function orNull(read, value, at) {
  return value === null ? null : read(value, at);
}
