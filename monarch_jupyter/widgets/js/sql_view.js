/** A query and its rows. */

import { Outcome } from "./controls.js";
import { button, count, element } from "./dom.js";

const FIRST = "SELECT mesh, rank, state, endpoint, rss_bytes // 1048576 AS mib\nFROM procs WHERE mesh != 'client' ORDER BY mesh, rank";
const MOST_ROWS = 1000; // that are shown

export class SqlView {
  /** @param {(sql: string) => Promise<import("./dashboard_server.js").Table>} query */
  constructor(query) {
    this._query = query;
    this.node = element("section", "md-sql mx-explorer", { "aria-label": "SQL" });
    this._sql = element("textarea", "md-query", { "aria-label": "Query", rows: "4", spellcheck: "false" });
    this._sql.value = FIRST;
    this._sql.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        void this.run();
      }
    });
    const run = button("Run", () => void this.run());
    run.title = "Ctrl+Enter";
    this._outcome = new Outcome();
    this._table = element("table", "md-rows");
    const place = element("div", "md-scroll", { role: "region", tabindex: "0", "aria-label": "Rows" });
    place.append(this._table);
    this.node.append(this._sql, run, this._outcome.node, place);
    this._asked = 0;
    /** @type {number | null} */
    this._at = null;
  }

  /**
   * Run the query again if the rows are of another time.
   * @param {number | null} at seconds after the first sample of a recording; null: live, or the last sample
   */
  follow(at) {
    if (at !== this._at && this._asked > 0) {
      void this.run();
    }
    this._at = at;
  }

  /** Run the query, and show its rows. */
  async run() {
    const asked = ++this._asked;
    this._outcome.say("running …");
    try {
      const found = await this._query(this._sql.value);
      if (asked === this._asked) {
        this._show(found);
      }
    } catch (error) {
      if (asked === this._asked) {
        this._outcome.fail(error);
        this._table.replaceChildren();
      }
    }
  }

  /** @param {import("./dashboard_server.js").Table} found */
  _show({ columns, rows, missing }) {
    const head = element("tr");
    head.append(...columns.map((name) => element("th", "", { scope: "col" }, name)));
    const body = rows.slice(0, MOST_ROWS).map((row) => {
      const line = element("tr");
      line.append(...columns.map((name) => cell(row[name])));
      return line;
    });
    this._table.replaceChildren(head, ...body);
    const more = rows.length > MOST_ROWS ? `, the first ${MOST_ROWS.toLocaleString("en")} are shown` : "";
    const lacks = missing.length > 0 ? `; incomplete: ${missing.join("; ")}` : "";
    this._outcome.say(`${count(rows.length, "row")}${more}${lacks}`);
  }
}

/** @param {unknown} value */
function cell(value) {
  const isNumber = typeof value === "number";
  const text = value === null ? "NULL" : typeof value === "string" ? value : JSON.stringify(value);
  return element("td", isNumber ? "md-number" : value === null ? "mx-muted" : "", {}, text);
}
