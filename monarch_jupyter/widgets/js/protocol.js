/**
 * The messages between a kernel and its pages: types and parsers. No I/O.
 *
 * The Python side of the same wire is monarch_jupyter/protocol/messages.py and requests.py. Every view of a page uses
 * this module: the widgets in cells, and the side panel, which is compiled with it.
 *
 * A snapshot replaces everything; a delta carries the meshes that changed, each with only its changed
 * rows, and is numbered one higher than the message before it. Invariant: a view is current only while no
 * number is missing. A page may send requests; each gets one answer, a result or an error in one line. The
 * state of a page: views.js, pending.js.
 */

import { WireError, each, lists, maybeNumbers, number, object, oneOf, orNull, show, sizes, text } from "./fields.js";

/** Comm target of the side panel, registered on both sides. */
export const TARGET = "monarch.meshes";

/** @typedef {"starting" | "idle" | "busy" | "paused" | "suspended" | "failed" | "stopped"} RankState */
/** @typedef {"starting" | "ready" | "failed" | "stopped"} MeshState */

/**
 * One proc of a mesh. Times in seconds, memory in MiB; `failure` is one line, when the state is "failed";
 * `errors` of its `messages` failed; it was started again `restarts` times. `where`: function, file and line of one
 * that is paused.
 * @typedef {object} Row
 * @property {number} rank
 * @property {Readonly<Record<string, number>>} point
 * @property {number | null} pid
 * @property {RankState} state
 * @property {string | null} actor
 * @property {string | null} endpoint
 * @property {number} since_s
 * @property {number} messages
 * @property {number | null} rss_mib
 * @property {string | null} failure
 * @property {number} errors
 * @property {number} restarts
 * @property {string | null} where
 */

/**
 * `debugged`: the ranks that JupyterLab's debugger is on. `failed`: a line for each mesh of actors that has failed on
 * ranks which live on.
 * @typedef {object} Mesh
 * @property {string} uid
 * @property {string} name
 * @property {string} host
 * @property {MeshState} state
 * @property {Readonly<Record<string, number>>} sizes
 * @property {readonly string[]} actors
 * @property {readonly string[]} failed
 * @property {readonly number[]} debugged
 * @property {number} age_s
 * @property {readonly Row[]} rows
 */

/** By dim. @typedef {Readonly<Record<string, readonly number[]>>} Indices */
/** @typedef {{readonly type: "snapshot", readonly seq: number, readonly meshes: readonly Mesh[]}} Snapshot */
/**
 * `gone`: the uids of meshes that are no more.
 * @typedef {object} Delta
 * @property {"delta"} type
 * @property {number} seq
 * @property {readonly Mesh[]} meshes
 * @property {readonly string[]} gone
 */
/**
 * The values of a grid, by rank. `numbers` is null unless all of them are some; the number of one that is not
 * finite is null. `indices`: for each dim, the index to show for each of its indices, which are others in a slice;
 * `fixed`: the indices of the dims that a slice has dropped. `dims` are all of them, in order.
 * @typedef {object} Values
 * @property {"values"} type
 * @property {number} seq
 * @property {Readonly<Record<string, number>>} sizes
 * @property {readonly string[]} dims
 * @property {Indices} indices
 * @property {Readonly<Record<string, number>>} fixed
 * @property {readonly (number | null)[] | null} numbers
 * @property {readonly string[]} texts
 */
/**
 * The values of these ranks are others than before; else as in Values.
 * @typedef {object} ValuesDelta
 * @property {"values_delta"} type
 * @property {number} seq
 * @property {readonly number[]} ranks
 * @property {readonly (number | null)[] | null} numbers
 * @property {readonly string[]} texts
 */
/**
 * One piece of slow work: `done` of `total`, which `unit` counts; `late` names the ranks that have not answered, `for_s` are the
 * seconds that it was under way when this was said.
 * @typedef {object} Bar
 * @property {string} key
 * @property {string} what
 * @property {number} done
 * @property {number | null} total
 * @property {string} unit
 * @property {string} late
 * @property {number} for_s
 */
/** @typedef {{readonly type: "bars", readonly seq: number, readonly bars: readonly Bar[]}} Bars */
/** @typedef {{readonly type: "bars_delta", readonly seq: number, readonly bars: readonly Bar[], readonly gone: readonly string[]}} BarsDelta */
/**
 * The answer to a request of a page: `error` is null, or one line, and then there is no result.
 * @typedef {object} Answer
 * @property {"answer"} type
 * @property {string} view
 * @property {number} id
 * @property {string | null} error
 * @property {unknown} result
 */
/** There are new lines since the last request; sent once until the page asks again. @typedef {{readonly type: "more"}} More */
/** The messages of a stream. @typedef {Snapshot | Delta | Values | ValuesDelta | Bars | BarsDelta} Streamed */
/** @typedef {Streamed | Answer | More} FromKernel */

/**
 * A request of a page.
 * @typedef {{do: "stop" | "kill", mesh: string, ranks?: readonly number[]}
 *   | {do: "stacks", mesh: string, ranks: readonly number[]}
 *   | {do: "actors", mesh: string, ranks: readonly [number]}
 *   | {do: "usage", mesh: string, after: number}
 *   | {do: "timeline", mesh: string, after_s: number}
 *   | {do: "restart", mesh: string, ranks?: readonly number[]}
 *   | {do: "lines", mesh: string | null, cell: number | null, ranks: readonly number[] | null,
 *      grep: string, page: number | null}
 *   | {do: "debug_in_lab", mesh: string, ranks: readonly number[] | null}
 *   | {do: "spawn", name: string, sizes: Readonly<Record<string, number>>, keep: boolean}
 *   | {do: "attach", name: string}
 *   | {do: "sessions"}
 *   | {do: "console", mesh: string, ranks: readonly [number]}
 *   | {do: "resume", mesh: string, ranks: readonly number[]}
 *   | {do: "say" | "complete", console: number, text: string}
 *   | {do: "standing" | "let_go", console: number}} Request
 */

/**
 * Lines around the one where a thread stands. `first` and `line` count from 1.
 * @typedef {{first: number, line: number, lines: readonly string[]}} Source
 */

/**
 * The state of a console; after a command, `text` is its output. `over`: the rank has resumed, and `note` says so.
 * @typedef {object} Standing
 * @property {number} console
 * @property {string} title
 * @property {string} prompt
 * @property {boolean} over
 * @property {string} text
 * @property {string} note
 * @property {Source | null} source
 */

/**
 * One text, and all that have written it just so in this page of lines. `points` names the ranks; `each` has every
 * line for itself, with the rank's name and when it arrived, in seconds since 1970.
 * @typedef {object} Fold
 * @property {string} points
 * @property {string} stream
 * @property {string} text
 * @property {readonly {readonly where: string, readonly at: number}[]} each
 */

/**
 * Page `page` of `pages`, from 1, the oldest: lines `first` to `last` of `total`. `given_up` older ones are not there
 * any more.
 * @typedef {object} Lines
 * @property {number} page
 * @property {number} pages
 * @property {number} first
 * @property {number} last
 * @property {number} total
 * @property {number} given_up
 * @property {readonly Fold[]} folds
 */

/**
 * One actor of a rank: `running` endpoints, `queued` calls behind them, `attributes` as names with texts, and how many
 * `more` it has. `ended`: it has failed, or was stopped.
 * @typedef {object} LiveActor
 * @property {string} name
 * @property {string} class_name
 * @property {readonly string[]} running
 * @property {number} queued
 * @property {readonly (readonly [string, string])[]} attributes
 * @property {number} more
 * @property {boolean} ended
 */

/**
 * A session of this user on this machine. `kept_as`: the name under which it outlives its client. `notebook`: the
 * path of the notebook whose kernel is its client, where the server knows it.
 * @typedef {object} Session
 * @property {string} session
 * @property {string} state
 * @property {string | null} kept_as
 * @property {number} age_s
 * @property {number | null} agent_pid
 * @property {number | null} client_pid
 * @property {string | null} program
 * @property {readonly string[]} meshes
 * @property {string | null} left
 * @property {string | null} notebook
 */

/**
 * The message in `data`, checked field by field. Fields not known here are left alone.
 * @param {unknown} data
 * @returns {FromKernel}
 */
export function parse(data) {
  const message = object(data, "message");
  const { type } = message;
  if (type === "answer") {
    return {
      type,
      view: text(message.view, "view"),
      id: number(message.id, "id"),
      error: orNull(text, message.error, "error"),
      result: message.result,
    };
  }
  if (type === "more") {
    return { type };
  }
  const streamed = STREAMED.find((one) => one === type);
  if (streamed === undefined) {
    throw new WireError(`type: expected ${STREAMED.map(show).join(", ")}, "answer" or "more", got ${show(type)}`);
  }
  return parseStreamed(streamed, message);
}

/** @type {readonly Streamed["type"][]} */
const STREAMED = ["snapshot", "delta", "values", "values_delta", "bars", "bars_delta"];

/** @type {(type: Streamed["type"], message: Record<string, unknown>) => Streamed} */
function parseStreamed(type, message) {
  const seq = number(message.seq, "seq");
  if (type === "bars" || type === "bars_delta") {
    const bars = each(parseBar, message.bars, "bars");
    return type === "bars" ? { type, seq, bars } : { type, seq, bars, gone: each(text, message.gone, "gone") };
  }
  if (type === "values" || type === "values_delta") {
    const numbers = orNull(maybeNumbers, message.numbers, "numbers");
    const texts = each(text, message.texts, "texts");
    return type === "values"
      ? {
          type,
          seq,
          sizes: sizes(message.sizes, "sizes"),
          dims: each(text, message.dims, "dims"),
          indices: lists(message.indices, "indices"),
          fixed: sizes(message.fixed, "fixed"),
          numbers,
          texts,
        }
      : { type, seq, ranks: each(number, message.ranks, "ranks"), numbers, texts };
  }
  const meshes = each(parseMesh, message.meshes, "meshes");
  return type === "snapshot" ? { type, seq, meshes } : { type, seq, meshes, gone: each(text, message.gone, "gone") };
}

/**
 * @param {unknown} data the result of "lines"
 * @returns {Lines}
 */
export function parseLines(data) {
  const fields = object(data, "lines");
  return {
    page: number(fields.page, "page"),
    pages: number(fields.pages, "pages"),
    first: number(fields.first, "first"),
    last: number(fields.last, "last"),
    total: number(fields.total, "total"),
    given_up: number(fields.given_up, "given_up"),
    folds: each(parseFold, fields.folds, "folds"),
  };
}

/**
 * @param {unknown} data the result of "actors"
 * @returns {LiveActor[]}
 */
export function parseActors(data) {
  return each(parseActor, object(data, "actors").actors, "actors");
}

/**
 * @param {unknown} data the result of "sessions"
 * @returns {Session[]}
 */
export function parseSessions(data) {
  return each(parseSession, object(data, "sessions").sessions, "sessions");
}

/**
 * @param {unknown} data the result of "console", "say" and "standing"
 * @returns {Standing}
 */
export function parseStanding(data) {
  const fields = object(data, "standing");
  return {
    console: number(fields.console, "console"),
    title: text(fields.title, "title"),
    prompt: text(fields.prompt, "prompt"),
    over: fields.over === true,
    text: text(fields.text, "text"),
    note: text(fields.note, "note"),
    source: orNull(parseSource, fields.source, "source"),
  };
}

/** @type {(data: unknown, at?: string) => Source} */
export function parseSource(data, at = "source") {
  const fields = object(data, at);
  return {
    first: number(fields.first, `${at}.first`),
    line: number(fields.line, `${at}.line`),
    lines: each(text, fields.lines, `${at}.lines`),
  };
}

/**
 * @param {unknown} data the result of "complete"
 * @returns {string[]}
 */
export function parseCompletions(data) {
  return each(text, object(data, "completions").matches, "matches");
}

/** @type {readonly RankState[]} */
const RANK_STATES = ["starting", "idle", "busy", "paused", "suspended", "failed", "stopped"];
/** @type {readonly MeshState[]} */
const MESH_STATES = ["starting", "ready", "failed", "stopped"];

/** @type {(data: unknown, at: string) => Mesh} */
function parseMesh(data, at) {
  const fields = object(data, at);
  return {
    uid: text(fields.uid, `${at}.uid`),
    name: text(fields.name, `${at}.name`),
    host: text(fields.host, `${at}.host`),
    state: oneOf(MESH_STATES, fields.state, `${at}.state`),
    sizes: sizes(fields.sizes, `${at}.sizes`),
    actors: each(text, fields.actors, `${at}.actors`),
    failed: each(text, fields.failed, `${at}.failed`),
    debugged: each(number, fields.debugged, `${at}.debugged`),
    age_s: number(fields.age_s, `${at}.age_s`),
    rows: each(parseRow, fields.rows, `${at}.rows`),
  };
}

/** @type {(data: unknown, at: string) => Row} */
function parseRow(data, at) {
  const fields = object(data, at);
  return {
    rank: number(fields.rank, `${at}.rank`),
    point: sizes(fields.point, `${at}.point`),
    pid: orNull(number, fields.pid, `${at}.pid`),
    state: oneOf(RANK_STATES, fields.state, `${at}.state`),
    actor: orNull(text, fields.actor, `${at}.actor`),
    endpoint: orNull(text, fields.endpoint, `${at}.endpoint`),
    since_s: number(fields.since_s, `${at}.since_s`),
    messages: number(fields.messages, `${at}.messages`),
    rss_mib: orNull(number, fields.rss_mib, `${at}.rss_mib`),
    failure: orNull(text, fields.failure, `${at}.failure`),
    errors: number(fields.errors, `${at}.errors`),
    restarts: number(fields.restarts, `${at}.restarts`),
    where: orNull(text, fields.where, `${at}.where`),
  };
}

/** @type {(data: unknown, at: string) => Bar} */
function parseBar(data, at) {
  const fields = object(data, at);
  return {
    key: text(fields.key, `${at}.key`),
    what: text(fields.what, `${at}.what`),
    done: number(fields.done, `${at}.done`),
    total: orNull(number, fields.total, `${at}.total`),
    unit: text(fields.unit, `${at}.unit`),
    late: text(fields.late, `${at}.late`),
    for_s: number(fields.for_s, `${at}.for_s`),
  };
}

/** @type {(data: unknown, at: string) => Fold} */
function parseFold(data, at) {
  const fields = object(data, at);
  return {
    points: text(fields.points, `${at}.points`),
    stream: text(fields.stream, `${at}.stream`),
    text: text(fields.text, `${at}.text`),
    each: each(parseLine, fields.each, `${at}.each`),
  };
}

/** @type {(data: unknown, at: string) => {where: string, at: number}} */
function parseLine(data, at) {
  const fields = object(data, at);
  return { where: text(fields.where, `${at}.where`), at: number(fields.at, `${at}.at`) };
}

/** @type {(data: unknown, at: string) => LiveActor} */
function parseActor(data, at) {
  const fields = object(data, at);
  return {
    name: text(fields.name, `${at}.name`),
    class_name: text(fields.class_name, `${at}.class_name`),
    running: each(text, fields.running, `${at}.running`),
    queued: number(fields.queued, `${at}.queued`),
    attributes: each(parseAttribute, fields.attributes, `${at}.attributes`),
    more: number(fields.more, `${at}.more`),
    ended: fields.ended === true,
  };
}

/** @type {(data: unknown, at: string) => readonly [string, string]} */
function parseAttribute(data, at) {
  const [name, value] = each(text, data, at);
  return [text(name, at), text(value, at)];
}

/** @type {(data: unknown, at: string) => Session} */
function parseSession(data, at) {
  const fields = object(data, at);
  return {
    session: text(fields.session, `${at}.session`),
    state: text(fields.state, `${at}.state`),
    kept_as: orNull(text, fields.kept_as, `${at}.kept_as`),
    age_s: number(fields.age_s, `${at}.age_s`),
    agent_pid: orNull(number, fields.agent_pid, `${at}.agent_pid`),
    client_pid: orNull(number, fields.client_pid, `${at}.client_pid`),
    program: orNull(text, fields.program, `${at}.program`),
    meshes: each(text, fields.meshes, `${at}.meshes`),
    left: orNull(text, fields.left, `${at}.left`),
    notebook: orNull(text, fields.notebook, `${at}.notebook`),
  };
}
