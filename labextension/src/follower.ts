/** Follows the current notebook: its kernel and the known meshes of that kernel. */

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { Signal, type ISignal } from '@lumino/signaling';

import { LOST, type LostDetail, type Source } from '../../monarch_jupyter/widgets/js/resuming.js';
import type { Request } from '../../monarch_jupyter/widgets/js/protocol.js';
import { KernelLink } from './kernel_comm.js';
import type { Subject } from './panel.js';

export class Follower {
  constructor(private readonly _tracker: INotebookTracker) {
    // Every notebook is linked when it opens, seen or not: its kernel may open the comm at any time.
    _tracker.forEach(panel => this._follow(panel));
    _tracker.widgetAdded.connect((_, panel) => this._follow(panel));
    _tracker.currentChanged.connect(() => this._changed.emit());
  }

  /** Emitted when the subject or its state may have changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get subject(): Subject {
    const panel = this._tracker.currentWidget;
    if (panel === null) {
      return { kind: 'no-notebook' };
    }
    const notebook = panel.context.localPath;
    const link = this._link;
    if (link === undefined) {
      return { kind: 'no-kernel', notebook };
    }
    return { kind: 'kernel', notebook, state: link.state, meshes: [...link.view.meshes.values()] };
  }

  /** Whether the kernel of the current notebook answers. */
  get isLive(): boolean {
    return this._link?.state === 'live';
  }

  /** Send a request to the kernel of the current notebook. */
  ask(what: Request): Promise<unknown> {
    const link = this._link;
    return link === undefined
      ? Promise.reject(new Error('open a notebook with a kernel first'))
      : link.ask(what);
  }

  private get _link(): KernelLink | undefined {
    return this._linkOf(this._tracker.currentWidget);
  }

  private _linkOf(panel: NotebookPanel | null): KernelLink | undefined {
    const kernel = panel?.sessionContext.session?.kernel;
    return kernel ? this._links.get(kernel) : undefined;
  }

  /** The meshes of the notebook's current kernel, for views of an earlier one. */
  private _sourceOf(panel: NotebookPanel): Source {
    return {
      meshes: () => {
        const link = this._linkOf(panel);
        return link?.state === 'live' ? link.view.meshes : null;
      },
      ask: what =>
        this._linkOf(panel)?.ask(what) ?? Promise.reject(new Error('the notebook has no kernel')),
      watch: changed => {
        const called = (): void => changed();
        this._changed.connect(called);
        return () => void this._changed.disconnect(called);
      }
    };
  }

  private _follow(panel: NotebookPanel): void {
    const { sessionContext } = panel;
    const link = (kernel: Kernel.IKernelConnection | null): void => {
      if (kernel !== null && !this._links.has(kernel)) {
        const made = new KernelLink(kernel);
        this._links.set(kernel, made);
        made.changed.connect(() => this._changed.emit());
      }
      this._changed.emit();
    };
    sessionContext.kernelChanged.connect((_, change) => {
      // A restart by menu or button is told as a change from a kernel to itself. Its link lives on.
      if (change.oldValue !== null && change.oldValue !== change.newValue) {
        this._links.get(change.oldValue)?.dispose();
      }
      link(change.newValue);
    });
    panel.context.pathChanged.connect(() => this._changed.emit());
    panel.node.addEventListener(LOST, event => {
      (event as CustomEvent<LostDetail>).detail.offer(this._sourceOf(panel));
    });
    link(sessionContext.session?.kernel ?? null);
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _links = new WeakMap<Kernel.IKernelConnection, KernelLink>();
}
