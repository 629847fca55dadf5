/**
 * The actors of one rank: class, running and queued calls, live attributes. Requested once a second while shown.
 *
 * Elements are kept and changed in place, so that opened entries stay open. For an ended rank the last state stays.
 */

import { count, element, setText } from "./dom.js";
import { parseActors } from "./protocol.js";

/** @typedef {import("./protocol.js").LiveActor} LiveActor */

const OPEN = 3; // so many actors are shown with their attributes at once

/** One actor. */
class ActorView {
  /**
   * @param {string} name
   * @param {boolean} open
   */
  constructor(name, open) {
    this.node = element("details", "mx-actor");
    this.node.open = open;
    this._class = element("code", "mx-extent");
    this._doing = element("span", "mx-muted");
    const head = element("summary");
    head.append(element("strong", "", {}, name), this._class, this._doing);
    const place = element("div", "mx-attributes", { role: "group", tabindex: "0", "aria-label": `Attributes of ${name}` });
    this._list = element("dl", "mx-facts");
    this._rest = element("p", "mx-muted");
    place.append(this._list, this._rest);
    this.node.append(head, place);
    /** @type {Map<string, HTMLElement>} */
    this._texts = new Map();
  }

  /** @param {LiveActor} actor */
  update(actor) {
    setText(this._class, actor.class_name.replace(/^.*\.(?=[^.]+$)/, ""));
    this._class.title = actor.class_name;
    setText(this._doing, doingText(actor));
    const names = actor.attributes.map(([name]) => name);
    if (names.join("\n") !== [...this._texts.keys()].join("\n")) {
      this._texts = new Map(names.map((name) => [name, this._texts.get(name) ?? element("dd", "mx-code")]));
      this._list.replaceChildren(...[...this._texts].flatMap(([name, text]) => [element("dt", "mx-code", {}, name), text]));
    }
    for (const [name, text] of actor.attributes) {
      const node = this._texts.get(name);
      if (node !== undefined) {
        setText(node, text);
      }
    }
    this._list.hidden = names.length === 0;
    setText(this._rest, restText(actor));
    this._rest.hidden = this._rest.textContent === "";
  }
}

/** The actors of the shown rank. */
export class ActorsView {
  /** @param {import("./controls.js").Ask} ask */
  constructor(ask) {
    this._ask = ask;
    this.node = element("section", "mx-actors", { "aria-label": "Actors" });
    this._note = element("p", "mx-muted");
    this._list = element("div");
    this.node.append(this._note, this._list);
    this.node.hidden = true;
    /** @type {ActorView[]} */
    this._views = [];
    this._names = "";
    /** @type {{mesh: string, rank: number} | null} */
    this._place = null;
    this._live = false;
    this._waits = false;
  }

  /**
   * @param {string} mesh
   * @param {number} rank
   * @param {boolean} live whether it can answer
   */
  show(mesh, rank, live) {
    const another = this._place === null || this._place.mesh !== mesh || this._place.rank !== rank;
    const began = live && !this._live;
    this._live = live;
    if (another) {
      this._place = { mesh, rank };
      this._waits = false;
      this._update([]);
      this._say("");
    } else if (!live && this._views.length > 0) {
      this._say("This is the last known state.");
    }
    if (another || began) {
      this.tick();
    }
  }

  /** No rank is shown. */
  hide() {
    this._place = null;
  }

  /** Once a second. */
  tick() {
    const place = this._place;
    if (place === null || !this._live || this._waits) {
      return;
    }
    this._waits = true;
    const answered = (/** @type {() => void} */ take) => {
      if (place === this._place) {
        this._waits = false;
        take();
      }
    };
    this._ask({ do: "actors", mesh: place.mesh, ranks: [place.rank] })
      .then((result) => parseActors(result))
      .then((actors) =>
        answered(() => {
          this._update(actors);
          this._say(this._live ? "" : "This is the last known state.");
        }),
      )
      .catch((/** @type {unknown} */ error) => answered(() => this._say(error instanceof Error ? error.message : String(error))));
  }

  /** @param {LiveActor[]} actors */
  _update(actors) {
    const names = actors.map(({ name }) => name).join("\n");
    if (names !== this._names) {
      this._names = names;
      this._views = actors.map(({ name }) => new ActorView(name, actors.length <= OPEN));
      this._list.replaceChildren(...this._views.map(({ node }) => node));
    }
    actors.forEach((actor, at) => this._views[at]?.update(actor));
    this._hide();
  }

  /** @param {string} text */
  _say(text) {
    setText(this._note, text);
    this._note.hidden = text === "";
    this._hide();
  }

  _hide() {
    this.node.hidden = this._views.length === 0 && this._note.hidden;
  }
}

/**
 * "in step, 3 calls wait"
 * @param {LiveActor} actor
 */
function doingText(actor) {
  if (actor.ended) {
    return "ended";
  }
  /** @type {Map<string, number>} */
  const running = new Map();
  for (const endpoint of actor.running) {
    running.set(endpoint, (running.get(endpoint) ?? 0) + 1);
  }
  const named = [...running].map(([endpoint, times]) => (times > 1 ? `${endpoint} ×${times}` : endpoint));
  const doing = named.length > 0 ? `in ${named.join(", ")}` : "idle";
  return actor.queued > 0 ? `${doing}, ${count(actor.queued, "call")} queued` : `${doing}, none queued`;
}

/** @param {LiveActor} actor */
function restText(actor) {
  if (actor.more > 0) {
    return `and ${actor.more.toLocaleString("en")} more`;
  }
  return actor.attributes.length === 0 ? "no attributes" : "";
}
