/** The forms of the panel: a new mesh, and the sessions on the machine. Plain DOM. */

import { Outcome, report, type Ask } from '../../monarch_jupyter/widgets/js/controls.js';
import { button, duration, element } from '../../monarch_jupyter/widgets/js/dom.js';
import type { Session } from '../../monarch_jupyter/widgets/js/protocol.js';

/** "hosts=2 gpus=4" as sizes by dim; throws an Error with the remedy, for nothing too. */
export function parseDims(text: string): Record<string, number> {
  const sizes: Record<string, number> = {};
  if (text.trim() === '') {
    throw new Error('give the dims and their sizes: write gpus=8, or hosts=2 gpus=4');
  }
  for (const word of text.split(/[\s,]+/).filter(Boolean)) {
    const match = /^([A-Za-z_]\w*)=(\d+)$/.exec(word);
    const [, dim, size] = match ?? [];
    if (dim === undefined || size === undefined) {
      throw new Error(`"${word}" is not a dim: write gpus=8, or hosts=2 gpus=4`);
    }
    if (Number(size) < 1) {
      throw new Error(`"${word}" leaves the mesh without ranks: a dim has at least one, as in ${dim}=1`);
    }
    if (dim in sizes) {
      throw new Error(`dim ${dim} is given twice: give it once`);
    }
    sizes[dim] = Number(size);
  }
  return sizes;
}

/** The name of a mesh; throws an Error with the remedy. */
export function parseName(text: string): string {
  const name = text.trim();
  if (!/^[\p{L}_][\p{L}\p{N}_]*$/u.test(name)) {
    const what = name === '' ? 'give the mesh a name' : `"${name}" is not a name`;
    throw new Error(`${what}: it becomes a variable of the notebook, such as workers`);
  }
  return name;
}

/** A form that spawns a mesh and binds it in the notebook. */
export class NewMeshForm {
  constructor(ask: Ask) {
    this.node = element('form', 'jp-Monarch-form', { 'aria-label': 'New mesh' });
    this._name = field('e.g. workers');
    this._dims = field('e.g. gpus=8');
    this._keep = element('input', '', { type: 'checkbox' });
    const keep = element('label', 'jp-Monarch-check');
    keep.append(this._keep, 'Keep it when the kernel ends');
    const submit = element('button', 'mx-button', { type: 'submit' }, 'Spawn');
    const last = element('div', 'jp-Monarch-bar');
    last.append(keep, submit);
    this._outcome = new Outcome();
    this.node.append(
      element('h2', 'jp-Monarch-heading', {}, 'New mesh'),
      labelled('Name', this._name),
      labelled('Dims', this._dims),
      last,
      this._outcome.node
    );
    this.node.addEventListener('submit', event => {
      event.preventDefault();
      this._spawn(ask);
    });
  }

  readonly node: HTMLFormElement;

  focus(): void {
    this._name.focus();
  }

  private _spawn(ask: Ask): void {
    const name = this._read(this._name, parseName);
    const sizes = name === null ? null : this._read(this._dims, parseDims);
    if (name === null || sizes === null) {
      return;
    }
    const asked = ask({ do: 'spawn', name, sizes, keep: this._keep.checked });
    report(this._outcome, `spawning ${name} …`, asked);
  }

  /** What a field says; null if that cannot be, which is said, and the field gets the focus. */
  private _read<T>(input: HTMLInputElement, parse: (text: string) => T): T | null {
    try {
      const found = parse(input.value);
      input.removeAttribute('aria-invalid');
      return found;
    } catch (error) {
      input.setAttribute('aria-invalid', 'true');
      input.focus();
      this._outcome.fail(error);
      return null;
    }
  }

  private readonly _dims: HTMLInputElement;
  private readonly _keep: HTMLInputElement;
  private readonly _name: HTMLInputElement;
  private readonly _outcome: Outcome;
}

const SESSION =
  'A session is the meshes of one program. It ends with the program; one whose meshes are kept waits here, ' +
  'with its processes, for a kernel to attach to it.';
/** States of a session, in the words of the list. */
const STATES: Readonly<Record<string, string>> = {
  live: 'in use',
  detached: 'detached: no program uses it',
  orphan: 'orphan: its program has ended',
  starting: 'starting',
  gone: 'ended'
};

/** The name of a session: the user's, else that of its notebook or program. Its own is a number. */
export function sessionName(one: Session): string {
  if (one.kept_as !== null) {
    return one.kept_as;
  }
  if (one.notebook !== null) {
    return one.notebook;
  }
  const words = (one.program ?? '').split(/\s+/).filter(Boolean);
  if (words.some(word => word.includes('ipykernel'))) {
    return 'a notebook of another server';
  }
  const script = words.find(word => /\.\w+$/.test(word) && !word.startsWith('-')) ?? words[0];
  return script?.split('/').pop() ?? 'a program';
}

/** The sessions on the machine, with a button to attach to a kept one without a client. */
export class SessionList {
  constructor(ask: Ask, refresh: () => void) {
    this._ask = ask;
    this._refresh = refresh;
    this.node = element('section', 'jp-Monarch-sessions', { 'aria-label': 'Sessions' });
    const head = element('div', 'jp-Monarch-head');
    head.append(
      element('h2', 'jp-Monarch-heading', {}, 'Sessions on this machine'),
      button('Refresh', refresh)
    );
    const what = element('p', 'jp-Monarch-where', {}, SESSION);
    this._note = element('p', 'jp-Monarch-where');
    this._outcome = new Outcome();
    this._list = element('ul', 'jp-Monarch-list', { role: 'list', 'aria-label': 'Sessions' });
    this._list.hidden = true;
    this.node.append(head, what, this._note, this._outcome.node, this._list);
  }

  readonly node: HTMLElement;

  /** `canAttach`: whether the current notebook's kernel can attach to one. */
  update(sessions: readonly Session[], canAttach: boolean): void {
    const shown = JSON.stringify([sessions.map(one => ({ ...one, age_s: 0 })), canAttach]);
    if (shown === this._shown) {
      return;
    }
    this._shown = shown;
    this._note.textContent = sessions.length === 0 ? 'None.' : '';
    this._list.hidden = sessions.length === 0;
    this._list.replaceChildren(...sessions.map(one => this._item(one, canAttach)));
  }

  /** Show an error in the place of the list. */
  fail(error: unknown): void {
    this._shown = '';
    this._list.hidden = true;
    this._note.textContent = error instanceof Error ? error.message : String(error);
  }

  private _item(one: Session, canAttach: boolean): HTMLElement {
    const item = element('li', 'jp-Monarch-session', { role: 'listitem' });
    const name = sessionName(one);
    item.setAttribute('aria-label', name);
    const head = element('div', 'jp-Monarch-head');
    const state = element('span', 'jp-Monarch-state', {}, STATES[one.state] ?? one.state);
    head.append(element('strong', 'jp-Monarch-name', {}, name), state);
    item.append(head);
    const title = [`session ${one.session}`, one.program ?? '', one.left ?? ''];
    const facts = element('p', 'jp-Monarch-where', { title: title.filter(Boolean).join('\n') });
    facts.textContent = sessionFacts(one);
    item.append(facts);
    if (one.kept_as !== null && one.state === 'detached') {
      const attach = button('Attach', () => {
        const asked = this._ask({ do: 'attach', name });
        report(this._outcome, `attaching to ${name} …`, asked);
        asked.then(this._refresh, this._refresh);
      });
      attach.disabled = !canAttach;
      attach.setAttribute('aria-label', `Attach ${name}`);
      item.append(attach);
    }
    return item;
  }

  private readonly _ask: Ask;
  private readonly _list: HTMLElement;
  private readonly _note: HTMLElement;
  private readonly _outcome: Outcome;
  private readonly _refresh: () => void;
  private _shown = '';
}

/** "workers, readers; used by train.ipynb, pid 12; 3 min old" */
function sessionFacts(one: Session): string {
  const pid = one.client_pid === null ? '' : `pid ${one.client_pid}`;
  const client = one.notebook === null ? pid : `${one.notebook}, ${pid}`;
  const facts = [
    one.meshes.join(', '),
    one.kept_as === null ? `ends with its program, ${pid}` : client && `used by ${client}`,
    `${duration(one.age_s)} old`
  ];
  return facts.filter(Boolean).join('; ');
}

function field(placeholder: string): HTMLInputElement {
  return element('input', 'mx-search', { placeholder, spellcheck: 'false', autocomplete: 'off' });
}

/** An input under its label. */
function labelled(text: string, input: HTMLElement): HTMLElement {
  const label = element('label', 'jp-Monarch-field');
  label.append(element('span', 'jp-Monarch-where', {}, text), input);
  return label;
}
