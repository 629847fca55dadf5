/**
 * The server of the dashboard: its state, the requests of views, queries. All URLs are relative to the page, so that it
 * works behind a proxy with a prefix.
 *
 * The Python side is runtime/monarch/_src/admin/dashboard.
 */

import { each, number, object, text } from "./fields.js";
import { parse } from "./protocol.js";

/** @typedef {import("./protocol.js").Mesh} Mesh */
/** Seconds since 1970. @typedef {{first: number, last: number, samples: number}} Span */
/**
 * `missing`: rows that hosts owe, in words. `now`: seconds since 1970. `offered`: the kinds of requests that are answered.
 * `span`: the times of a recording; null: it is live.
 * @typedef {{meshes: readonly Mesh[], missing: readonly string[], now: number, offered: ReadonlySet<string>, span: Span | null}} State
 */
/** The answer to a query. @typedef {{columns: readonly string[], rows: readonly Record<string, unknown>[], missing: readonly string[]}} Table */

const JSON_TYPE = { "Content-Type": "application/json" };

export class DashboardServer {
  /** @param {(url: string, init?: RequestInit) => Promise<Response>} get as `fetch` */
  constructor(get) {
    this._fetch = get;
    /** @type {number | null} seconds after the first sample of a recording; null: live, or the last sample */
    this.at = null;
    /** @type {ReadonlySet<string>} */
    this.offered = new Set();
    this.isRecorded = false;
    /**
     * Answers requests of views.
     * @type {import("./controls.js").Ask}
     */
    this.ask = Object.assign(
      (/** @type {import("./protocol.js").Request} */ what) => this._post("ask", what).then(resultOf),
      { offers: (/** @type {string} */ what) => this.offered.has(what), isRecorded: () => this.isRecorded },
    );
  }

  /** @returns {Promise<State>} */
  async state() {
    const found = parseState(await this._get("state"));
    this.offered = found.offered;
    this.isRecorded = found.span !== null;
    return found;
  }

  /**
   * @param {string} sql
   * @returns {Promise<Table>}
   */
  async query(sql) {
    return parseTable(await this._post("query", { sql }));
  }

  /** The case file as text. @returns {Promise<string>} */
  async explain() {
    return text(object(await this._get("explain"), "explain").text, "text");
  }

  /** @param {string} path */
  _url(path) {
    return this.at === null ? path : `${path}?at=${this.at}`;
  }

  /** @param {string} path */
  async _get(path) {
    return answerOf(await this._fetch(this._url(path)));
  }

  /**
   * @param {string} path
   * @param {unknown} body
   */
  async _post(path, body) {
    return answerOf(await this._fetch(this._url(path), { method: "POST", headers: JSON_TYPE, body: JSON.stringify(body) }));
  }
}

/** @param {Response} response */
async function answerOf(response) {
  /** @type {unknown} */
  const body = await response.json();
  if (response.ok) {
    return body;
  }
  const message = text(object(object(body, "answer").error, "error").message, "message");
  throw new Error(response.status === 401 ? `${message}; open the address that monarch dashboard printed` : message);
}

/**
 * An action answers with lines, as in the API; a question with its result.
 * @param {unknown} body
 */
function resultOf(body) {
  const isAction = typeof body === "object" && body !== null && "done" in body;
  return isAction ? each(text, body.done, "done").join("; ") : body;
}

/**
 * @param {unknown} data
 * @returns {State}
 */
export function parseState(data) {
  const fields = object(data, "state");
  const message = parse(data);
  return {
    meshes: message.type === "snapshot" ? message.meshes : [],
    missing: each(missingText, fields.missing, "missing"),
    now: number(fields.now_us, "now_us") / 1e6,
    offered: new Set(each(text, fields.offered, "offered")),
    span: fields.span === null ? null : parseSpan(fields.span),
  };
}

/** @param {unknown} data @returns {Span} */
function parseSpan(data) {
  const fields = object(data, "span");
  return {
    first: number(fields.first_us, "first_us") / 1e6,
    last: number(fields.last_us, "last_us") / 1e6,
    samples: number(fields.samples, "samples"),
  };
}

/** @param {unknown} data @returns {Table} */
function parseTable(data) {
  const fields = object(data, "table");
  return {
    columns: each(text, fields.columns, "columns"),
    rows: each(object, fields.rows, "rows"),
    missing: each(missingText, fields.missing, "missing"),
  };
}

/** @type {(data: unknown, at: string) => string} */
function missingText(data, at) {
  const fields = object(data, at);
  return `${text(fields.table, `${at}.table`)}: ${text(fields.where, `${at}.where`)}: ${text(fields.reason, `${at}.reason`)}`;
}
