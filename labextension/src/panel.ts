/**
 * The panel as plain DOM, for a link to a kernel. It knows neither Lumino nor kernels.
 *
 * Elements are kept by mesh uid and changed in place, so that ten updates a second neither move the
 * focus nor make a screen reader start again. States are words; colour only repeats them.
 */

import { Outcome, type Ask } from '../../monarch_jupyter/widgets/js/controls.js';
import { button, debuggedText, pointText } from '../../monarch_jupyter/widgets/js/dom.js';
import { MeshView } from '../../monarch_jupyter/widgets/js/mesh.js';
import { LinesView } from '../../monarch_jupyter/widgets/js/line_list.js';
import { PacedDrawing } from '../../monarch_jupyter/widgets/js/paced_drawing.js';
import { RestartRankButton } from '../../monarch_jupyter/widgets/js/rank_restart.js';
import { NewMeshForm, SessionList } from './forms.js';
import type { LinkState } from './kernel_comm.js';
import type { Mesh, RankState, Row } from '../../monarch_jupyter/widgets/js/protocol.js';

/** The subject of the panel: a notebook and the link to its kernel, if there are any. */
export type Subject =
  | { readonly kind: 'no-notebook' }
  | { readonly kind: 'no-kernel'; readonly notebook: string }
  | {
      readonly kind: 'kernel';
      readonly notebook: string;
      readonly state: LinkState;
      readonly meshes: readonly Mesh[];
    };

/** At most so many failures of a mesh, and ranks that are paused, are spelled out. */
const SPELLED_OUT = 5;
const ORDER: readonly RankState[] = ['failed', 'suspended', 'paused', 'busy', 'idle', 'starting', 'stopped'];

/** The actions that the panel delegates. */
export interface PanelActions {
  /** By the kernel of the current notebook. */
  readonly ask: Ask;
  /** Look for sessions now. */
  readonly refresh: () => void;
}

export class PanelView {
  constructor(
    private readonly _document: Document,
    private readonly _actions: PanelActions
  ) {
    this.node = this._element('div', 'jp-Monarch mx-panel');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'Monarch meshes');
    const heading = this._element('h2', 'jp-Monarch-heading', 'Meshes');
    this._where = this._element('p', 'jp-Monarch-where');
    // Only this line is announced: the counts below it change too often.
    this._summary = this._element('p', 'jp-Monarch-summary');
    this._summary.setAttribute('role', 'status');
    this._list = this._element('ul', 'jp-Monarch-list');
    // Without list bullets some browsers drop the role of a <ul>.
    this._list.setAttribute('role', 'list');
    this._list.setAttribute('aria-label', 'Meshes');
    this._form = new NewMeshForm(_actions.ask);
    this._lines = new LinesView(_actions.ask, 'Lines of all ranks');
    this._lines.node.hidden = true;
    this._more = button('Lines of all ranks', () => {
      if (this._lines.node.hidden) {
        this.showLines();
      } else {
        this._hideLines();
      }
    });
    this._more.setAttribute('aria-expanded', 'false');
    this.sessions = new SessionList(_actions.ask, _actions.refresh);
    this.node.append(
      heading,
      this._where,
      this._summary,
      this._list,
      this._more,
      this._lines.node,
      this._form.node,
      this.sessions.node
    );
    this.update({ kind: 'no-notebook' });
  }

  readonly node: HTMLElement;
  readonly sessions: SessionList;

  /** Focus the name of a new mesh. */
  focusNewMesh(): void {
    this._form.focus();
  }

  /** The newest lines of all ranks of the notebook's kernel. */
  showLines(): void {
    this._lines.node.hidden = false;
    this._more.setAttribute('aria-expanded', 'true');
    this._lines.show({ mesh: null, cell: null, ranks: null });
  }

  /** Once a second, for the times. */
  tick(): void {
    for (const card of this._cards.values()) {
      card.tick();
    }
  }

  private _hideLines(): void {
    this._lines.node.hidden = true;
    this._more.setAttribute('aria-expanded', 'false');
  }

  update(subject: Subject): void {
    setText(this._where, subject.kind === 'no-notebook' ? '' : subject.notebook);
    this._summary.replaceChildren(...this._changedSummary(subject));
    const meshes = subject.kind === 'kernel' && subject.state === 'live' ? subject.meshes : [];
    this._list.hidden = meshes.length === 0;
    const live = subject.kind === 'kernel' && subject.state === 'live';
    this._form.node.hidden = this._more.hidden = !live;
    if (!live) {
      this._hideLines();
    } else if (!this._lines.node.hidden) {
      this._lines.follow();
    }
    const old = this._cards;
    this._cards = new Map();
    let place = this._list.firstElementChild;
    for (const mesh of meshes) {
      const card = old.get(mesh.uid) ?? new MeshCard(this._document, mesh.uid, this._actions.ask);
      old.delete(mesh.uid);
      this._cards.set(mesh.uid, card);
      card.update(mesh);
      if (card.node === place) {
        place = place.nextElementSibling;
      } else {
        this._list.insertBefore(card.node, place);
      }
    }
    for (const card of old.values()) {
      card.close();
    }
  }

  /** The summary's nodes: the same ones while the text is the same, so it is announced once. */
  private _changedSummary(subject: Subject): Node[] {
    const parts = summary(subject);
    const written = parts.map(part => (typeof part === 'string' ? part : part.code)).join('');
    if (written === this._summary.textContent) {
      return [...this._summary.childNodes];
    }
    return parts.map(part =>
      typeof part === 'string'
        ? this._document.createTextNode(part)
        : this._element('code', 'jp-Monarch-code', part.code)
    );
  }

  private _element(tag: string, className: string, content = ''): HTMLElement {
    return element(this._document, tag, className, content);
  }

  private _cards = new Map<string, MeshCard>();
  private readonly _form: NewMeshForm;
  private readonly _lines: LinesView;
  private readonly _more: HTMLButtonElement;
  private readonly _list: HTMLElement;
  private readonly _summary: HTMLElement;
  private readonly _where: HTMLElement;
}

/** The line of a dead rank. */
interface DeadItem {
  readonly node: HTMLElement;
  readonly text: HTMLElement;
  readonly restart: RestartRankButton;
}

/** One mesh of the list. */
class MeshCard {
  constructor(
    document: Document,
    uid: string,
    private readonly _ask: Ask
  ) {
    this.node = element(document, 'li', 'jp-Monarch-mesh');
    this.node.setAttribute('role', 'listitem');
    this._name = element(document, 'h3', 'jp-Monarch-name');
    this._name.id = `jp-monarch-${uid}`;
    this.node.setAttribute('aria-labelledby', this._name.id);
    this._state = element(document, 'span', 'jp-Monarch-state');
    this._sizes = element(document, 'span', 'jp-Monarch-sizes');
    this._ranks = element(document, 'span', 'jp-Monarch-ranks');
    this._place = element(document, 'p', 'jp-Monarch-place');
    this._debugged = element(document, 'p', 'jp-Monarch-place');
    this._failures = element(document, 'ul', 'jp-Monarch-failures');
    this._failures.setAttribute('role', 'list');
    this._failures.setAttribute('aria-label', 'Failures');
    this._failures.hidden = true;
    this._paused = element(document, 'ul', 'jp-Monarch-paused');
    this._paused.setAttribute('role', 'list');
    this._paused.setAttribute('aria-label', 'Paused');
    const head = element(document, 'div', 'jp-Monarch-head');
    head.append(this._name, this._state);
    const extent = element(document, 'p', 'jp-Monarch-extent');
    // The space separates the two for screen readers.
    extent.append(this._sizes, ' ', this._ranks);
    this._more = button('Ranks', () => this._toggle());
    this._more.setAttribute('aria-expanded', 'false');
    this._bar = element(document, 'div', 'jp-Monarch-bar');
    this._bar.append(this._more);
    this.node.append(
      head,
      extent,
      this._place,
      this._debugged,
      this._failures,
      this._outcome.node,
      this._paused,
      this._bar
    );
  }

  readonly node: HTMLElement;

  /** Once a second, for the times. */
  tick(): void {
    this._view?.tick();
  }

  private _toggle(): void {
    if (this._view === null) {
      this._open();
    } else {
      this._more.setAttribute('aria-expanded', 'false');
      this._drawing?.end();
      this._view.close();
      this._view.node.remove();
      this._view.actions.remove();
      this._view = this._drawing = null;
    }
  }

  /** The mesh has ended. */
  close(): void {
    this._drawing?.end();
    this.node.remove();
  }

  /** Show the ranks, if they are not. */
  private _open(): MeshView | null {
    if (this._view === null && this._mesh !== null) {
      this._more.setAttribute('aria-expanded', 'true');
      const view = (this._view = new MeshView(this._mesh, this._ask, { bare: true }));
      this._drawing = new PacedDrawing(() => {
        if (this._mesh !== null) {
          view.update(this._mesh);
        }
      });
      this._bar.append(view.actions);
      this.node.append(view.node);
    }
    return this._view;
  }

  update(mesh: Mesh): void {
    this._mesh = mesh;
    this._drawing?.ask();
    setText(this._name, mesh.name);
    setText(this._state, mesh.state);
    this._state.dataset.state = mesh.state;
    setText(this._sizes, sizes(mesh));
    setText(this._ranks, counts(mesh.rows));
    setText(this._place, place(mesh));
    setText(this._debugged, debuggedText(mesh));
    this._debugged.hidden = mesh.debugged.length === 0;
    this._showFailures(mesh);
    this._showPaused(mesh.rows);
  }

  /** Where ranks are paused, each a click away from its console. */
  private _showPaused(rows: readonly Row[]): void {
    const paused = rows.filter(row => row.state === 'paused');
    const lines = paused.slice(0, SPELLED_OUT).map(row => ({
      rank: row.rank,
      name: pointText(row.point) || 'the rank',
      where: row.where ?? ''
    }));
    const written = JSON.stringify([lines, paused.length]);
    if (written === this._pausedWritten) {
      return;
    }
    this._pausedWritten = written;
    this._paused.hidden = lines.length === 0;
    const document = this.node.ownerDocument;
    const items = lines.map(({ rank, name, where }) => {
      const item = element(document, 'li', 'jp-Monarch-pause');
      item.setAttribute('role', 'listitem');
      const go = button('Console', () => this._open()?.openConsole(rank));
      go.setAttribute('aria-label', `Console of ${name}`);
      item.append(element(document, 'span', '', `${name}: ${where} `), go);
      return item;
    });
    if (paused.length > SPELLED_OUT) {
      const more = element(document, 'li', '', `and ${paused.length - SPELLED_OUT} more`);
      more.setAttribute('role', 'listitem');
      items.push(more);
    }
    this._paused.replaceChildren(...items);
  }

  /** Failed meshes of actors, and dead ranks, each with a button that starts it again. */
  private _showFailures(mesh: Mesh): void {
    const failed = mesh.rows.filter(row => row.state === 'failed');
    const dead = failed.slice(0, SPELLED_OUT);
    for (const [rank, item] of this._dead) {
      const row = mesh.rows.find(one => one.rank === rank);
      if (row !== undefined) {
        item.restart.show(mesh, row); // also while its process starts
      }
      if (!dead.some(one => one.rank === rank) && item.restart.node.hidden) {
        this._dead.delete(rank);
      }
    }
    for (const row of dead) {
      let item = this._dead.get(row.rank);
      if (item === undefined) {
        item = this._deadItem(row);
        this._dead.set(row.rank, item);
        this._outcome.say(''); // of an earlier restart
      }
      setText(item.text, `${pointText(row.point) || 'the rank'}: ${row.failure ?? 'failed'} `);
      item.restart.show(mesh, row);
    }
    const document = this.node.ownerDocument;
    const line = (text: string): HTMLElement => {
      const item = element(document, 'li', 'jp-Monarch-failure', text);
      item.setAttribute('role', 'listitem');
      return item;
    };
    const more = failed.length - dead.length;
    const rest = more > 0 ? [`and ${more} more`] : [];
    const shown = [...this._dead].sort(([one], [other]) => one - other);
    const written = JSON.stringify([mesh.failed, shown.map(([rank]) => rank), rest]);
    if (written === this._failuresWritten) {
      return; // A button that is focused stays.
    }
    this._failuresWritten = written;
    const items = [
      ...mesh.failed.map(line),
      ...shown.map(([, { node }]) => node),
      ...rest.map(line)
    ];
    this._failures.hidden = items.length === 0;
    this._failures.replaceChildren(...items);
  }

  private _deadItem(row: Row): DeadItem {
    const document = this.node.ownerDocument;
    const node = element(document, 'li', 'jp-Monarch-failure');
    node.setAttribute('role', 'listitem');
    const text = element(document, 'span', '');
    const restart = new RestartRankButton(this._ask, this._outcome, {
      label: 'Restart',
      onEnd: () => this._mesh !== null && this._showFailures(this._mesh)
    });
    restart.node.setAttribute('aria-label', `Restart ${pointText(row.point) || 'the rank'}`);
    node.append(text, restart.node);
    return { node, text, restart };
  }

  private _mesh: Mesh | null = null;
  private _view: MeshView | null = null;
  private _drawing: PacedDrawing | null = null;
  private readonly _bar: HTMLElement;
  private readonly _more: HTMLButtonElement;
  private readonly _failures: HTMLElement;
  private readonly _outcome = new Outcome();
  private readonly _dead = new Map<number, DeadItem>();
  private _failuresWritten = '';
  private readonly _paused: HTMLElement;
  private _pausedWritten = '';
  private readonly _name: HTMLElement;
  private readonly _debugged: HTMLElement;
  private readonly _place: HTMLElement;
  private readonly _ranks: HTMLElement;
  private readonly _sizes: HTMLElement;
  private readonly _state: HTMLElement;
}

/** A few words for the status bar; "" where there is nothing to say. */
export function statusText(subject: Subject): string {
  if (subject.kind !== 'kernel' || subject.state !== 'live' || subject.meshes.length === 0) {
    return '';
  }
  const rows = subject.meshes.flatMap(mesh => mesh.rows);
  return `Monarch: ${counts(rows)}`;
}

/** The state and the remedy, as text and code. */
function summary(subject: Subject): (string | { code: string })[] {
  switch (subject.kind) {
    case 'no-notebook':
      return ['Open a notebook to see the meshes of its kernel.'];
    case 'no-kernel':
      return ['This notebook has no kernel. Choose one with the kernel button at its top right.'];
    case 'kernel':
      return kernelSummary(subject.state, subject.meshes);
  }
}

function kernelSummary(
  state: LinkState,
  meshes: readonly Mesh[]
): (string | { code: string })[] {
  switch (state) {
    case 'asking':
    case 'opening':
      return ['Waiting for the kernel. It answers when the running cell has ended.'];
    case 'unloaded':
      return [
        'Monarch is not loaded in this kernel. Run ',
        { code: '%load_ext monarch_jupyter' },
        ' in a cell.'
      ];
    case 'elsewhere':
      return ['Another view of this kernel, such as a console, has its messages. Close that one.'];
    case 'dead':
      return ['The kernel has ended. Start it again from the Kernel menu.'];
    case 'live':
      break;
  }
  if (meshes.length === 0) {
    return ['No meshes yet. Run ', { code: '%monarch spawn workers gpus=8' }, ' to make one.'];
  }
  const failed = meshes.filter(mesh => mesh.state === 'failed').map(mesh => mesh.name);
  const number = meshes.length === 1 ? '1 mesh' : `${meshes.length} meshes`;
  return [failed.length === 0 ? number : `${number}, failed: ${failed.join(', ')}`];
}

function sizes(mesh: Mesh): string {
  return Object.entries(mesh.sizes)
    .map(([dim, size]) => `${dim}=${size}`)
    .join(' ');
}

/** "8 ranks: 1 failed, 7 idle" */
function counts(rows: readonly Row[]): string {
  const by = new Map<RankState, number>();
  for (const { state } of rows) {
    by.set(state, (by.get(state) ?? 0) + 1);
  }
  const parts = ORDER.filter(state => by.has(state)).map(state => `${by.get(state)} ${state}`);
  const number = rows.length === 1 ? '1 rank' : `${rows.length} ranks`;
  return parts.length === 0 ? number : `${number}: ${parts.join(', ')}`;
}

function place(mesh: Mesh): string {
  const actors = mesh.actors.length === 0 ? 'no actors' : mesh.actors.join(', ');
  return `${actors} on ${mesh.host}`;
}

function element(document: Document, tag: string, className: string, content = ''): HTMLElement {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = content;
  return node;
}

/** Writes only what changed: an equal text would still be announced, and cost a layout. */
function setText(node: HTMLElement, content: string): void {
  if (node.textContent !== content) {
    node.textContent = content;
  }
}
