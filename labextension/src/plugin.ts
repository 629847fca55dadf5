/**
 * The JupyterLab plugin: a left side panel that follows the current notebook and its kernel.
 *
 * Owns: one link for each connection of a notebook to a kernel, ended with that connection.
 */

import { ILabShell, ILayoutRestorer, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { LabIcon } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';

import { KernelLink } from './link.js';
import { PanelView, type Subject } from './panel.js';

const PANEL_ID = 'monarch-jupyter:meshes';

// Nine ranks of a mesh.
const icon = new LabIcon({
  name: 'monarch-jupyter:mesh',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">${[5, 12, 19]
    .flatMap(x => [5, 12, 19].map(y => `<circle cx="${x}" cy="${y}" r="2.6"/>`))
    .join('')}</g></svg>`
});

/** Lets the panel follow the notebook in front. */
class Follower {
  constructor(
    private readonly _tracker: INotebookTracker,
    private readonly _view: PanelView
  ) {
    // Every notebook is linked when it opens, seen or not: its kernel may open the comm at any time.
    _tracker.forEach(panel => this._follow(panel));
    _tracker.widgetAdded.connect((_, panel) => this._follow(panel));
    _tracker.currentChanged.connect(() => this._show());
    this._show();
  }

  private _follow(panel: NotebookPanel): void {
    const { sessionContext } = panel;
    const link = (kernel: Kernel.IKernelConnection | null): void => {
      if (kernel !== null && !this._links.has(kernel)) {
        const made = new KernelLink(kernel);
        this._links.set(kernel, made);
        made.changed.connect(() => this._show());
      }
      this._show();
    };
    sessionContext.kernelChanged.connect((_, change) => {
      if (change.oldValue !== null) {
        this._links.get(change.oldValue)?.dispose();
      }
      link(change.newValue);
    });
    panel.context.pathChanged.connect(() => this._show());
    link(sessionContext.session?.kernel ?? null);
  }

  private _show(): void {
    this._view.update(this._subject());
  }

  private _subject(): Subject {
    const panel = this._tracker.currentWidget;
    if (panel === null) {
      return { kind: 'no-notebook' };
    }
    const notebook = panel.context.localPath;
    const kernel = panel.sessionContext.session?.kernel;
    const link = kernel ? this._links.get(kernel) : undefined;
    if (link === undefined) {
      return { kind: 'no-kernel', notebook };
    }
    return { kind: 'kernel', notebook, state: link.state, meshes: [...link.view.meshes.values()] };
  }

  private readonly _links = new WeakMap<Kernel.IKernelConnection, KernelLink>();
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'monarch-jupyter:panel',
  description: 'A side panel with the meshes of the current notebook.',
  autoStart: true,
  requires: [ILabShell, INotebookTracker],
  optional: [ILayoutRestorer],
  activate: (
    _app,
    shell: ILabShell,
    tracker: INotebookTracker,
    restorer: ILayoutRestorer | null
  ): void => {
    const view = new PanelView(document);
    const widget = new Widget({ node: view.node });
    widget.id = PANEL_ID;
    widget.title.icon = icon;
    widget.title.caption = 'Monarch';
    new Follower(tracker, view);
    shell.add(widget, 'left', { rank: 600, type: 'Monarch' });
    restorer?.add(widget, PANEL_ID);
  }
};

export default plugin;
