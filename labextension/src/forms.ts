/** The forms of the panel: a new mesh, and the sessions on the machine. Plain DOM. */

import { Outcome, report, type Ask } from '../../monarch_jupyter/widgets/js/controls.js';
import { button, duration, element } from '../../monarch_jupyter/widgets/js/dom.js';
import type { Session } from '../../monarch_jupyter/widgets/js/protocol.js';

/** "hosts=2 gpus=4" as sizes by dim; throws an Error with the remedy. */
export function parseDims(text: string): Record<string, number> {
  const sizes: Record<string, number> = {};
  for (const word of text.split(/[\s,]+/).filter(Boolean)) {
    const match = /^([A-Za-z_]\w*)=(\d+)$/.exec(word);
    const [, dim, size] = match ?? [];
    if (dim === undefined || size === undefined) {
      throw new Error(`"${word}" is not a dim: write gpus=8, or hosts=2 gpus=4`);
    }
    sizes[dim] = Number(size);
  }
  return sizes;
}

/** A form that spawns a mesh and binds it in the notebook. */
export class NewMeshForm {
  constructor(ask: Ask) {
    this.node = element('form', 'jp-Monarch-form', { 'aria-label': 'New mesh' });
    this._name = field('Name', 'workers');
    this._dims = field('Dims', 'gpus=8');
    this._keep = element('input', '', { type: 'checkbox' });
    const keep = element('label', '', { title: 'The mesh outlives the kernel; attach to it again later' });
    keep.append(this._keep, ' keep');
    const submit = element('button', 'mx-button', { type: 'submit' }, 'Spawn');
    this._outcome = new Outcome();
    this.node.append(this._name, this._dims, keep, submit, this._outcome.node);
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
    const name = this._name.value.trim() || this._name.placeholder;
    try {
      const sizes = parseDims(this._dims.value.trim() || this._dims.placeholder);
      const asked = ask({ do: 'spawn', name, sizes, keep: this._keep.checked });
      report(this._outcome, `spawning ${name} …`, asked);
    } catch (error) {
      this._outcome.fail(error);
    }
  }

  private readonly _dims: HTMLInputElement;
  private readonly _keep: HTMLInputElement;
  private readonly _name: HTMLInputElement;
  private readonly _outcome: Outcome;
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
    this._note = element('p', 'jp-Monarch-where');
    this._outcome = new Outcome();
    this._list = element('ul', 'jp-Monarch-list', { role: 'list', 'aria-label': 'Sessions' });
    this._list.hidden = true;
    this.node.append(head, this._note, this._outcome.node, this._list);
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
    const name = one.kept_as ?? one.session;
    item.setAttribute('aria-label', name);
    item.append(element('strong', '', {}, name), ' ', element('span', '', {}, one.state));
    const holder = one.client_pid === null ? 'no client is attached' : `held by pid ${one.client_pid}`;
    const meshes = one.meshes.length === 0 ? '' : `${one.meshes.join(', ')}; `;
    const kept = one.kept_as === null ? 'ends with its program' : holder;
    const title = [one.program ?? '', one.left ?? ''].filter(Boolean).join('\n');
    const facts = `${meshes}${kept}; ${duration(one.age_s)} old`;
    item.append(element('p', 'jp-Monarch-where', title ? { title } : {}, facts));
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

function field(label: string, placeholder: string): HTMLInputElement {
  return element('input', 'mx-search', {
    'aria-label': label,
    placeholder,
    spellcheck: 'false',
    autocomplete: 'off'
  });
}
