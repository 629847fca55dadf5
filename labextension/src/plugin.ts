/**
 * The JupyterLab plugin: a left side panel that follows the current notebook and its kernel, an item in the
 * status bar, commands, and a card in the launcher.
 *
 * Owns: one link for each connection of a notebook to a kernel, ended with that connection.
 */

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { LabIcon } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';

import { addCommands, commandIds } from './commands.js';
import { Follower } from './follower.js';
import { PanelView, statusText } from './panel.js';
import { fetchSessions } from './sessions.js';

const PANEL_ID = 'monarch-jupyter:meshes';
const PLUGIN_ID = 'monarch-jupyter:panel';

// Nine ranks of a mesh.
const icon = new LabIcon({
  name: 'monarch-jupyter:mesh',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">${[5, 12, 19]
    .flatMap(x => [5, 12, 19].map(y => `<circle cx="${x}" cy="${y}" r="2.6"/>`))
    .join('')}</g></svg>`
});

/** The panel in JupyterLab; it refreshes the sessions while it is visible. */
class Panel {
  constructor(
    private readonly _app: JupyterFrontEnd,
    tracker: INotebookTracker
  ) {
    this._follower = new Follower(tracker);
    this.view = new PanelView(document, {
      ask: what => this._follower.ask(what),
      refresh: () => void this._refresh()
    });
    this.widget = new Widget({ node: this.view.node });
    this.widget.id = PANEL_ID;
    this.widget.title.icon = icon;
    this.widget.title.caption = 'Monarch';
    this._follower.changed.connect(() => this._update());
    this._update();
    setInterval(() => {
      if (this.widget.isVisible) {
        this.view.tick();
      }
    }, 1000);
    this.refreshEvery(5);
  }

  readonly view: PanelView;
  readonly widget: Widget;
  readonly statusButton = document.createElement('button');

  /** Refresh the sessions every so many seconds; 0: on request only. */
  refreshEvery(seconds: number): void {
    clearInterval(this._timer);
    if (seconds > 0) {
      this._timer = setInterval(() => {
        if (this.widget.isVisible) {
          void this._refresh();
        }
      }, seconds * 1000);
    }
  }

  private _update(): void {
    const { subject } = this._follower;
    this.view.update(subject);
    const said = statusText(subject);
    if (this.statusButton.textContent !== said) {
      this.statusButton.textContent = said;
    }
    this.statusButton.hidden = said === '';
    const names = subject.kind === 'kernel' ? subject.meshes.map(({ uid }) => uid).join() : '';
    if (names !== this._names) {
      this._names = names;
      void this._refresh();
    }
  }

  private async _refresh(): Promise<void> {
    try {
      const sessions = await fetchSessions(this._app.serviceManager.serverSettings);
      this.view.sessions.update(sessions, this._follower.isLive);
    } catch (error) {
      this.view.sessions.fail(error);
    }
  }

  private readonly _follower: Follower;
  private _names = '';
  private _timer: ReturnType<typeof setInterval> | undefined;
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'A side panel with the meshes of the current notebook, and what can be done about them.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [
    ILayoutRestorer,
    ICommandPalette,
    ILauncher,
    IStatusBar,
    ISettingRegistry
  ],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    statusBar: IStatusBar | null,
    settings: ISettingRegistry | null
  ): void => {
    const panel = new Panel(app, tracker);
    app.shell.add(panel.widget, 'left', { rank: 600, type: 'Monarch' });
    restorer?.add(panel.widget, PANEL_ID);
    const show = (): void => app.shell.activateById(PANEL_ID);
    addCommands(app, { icon, panel: panel.view, show });
    for (const command of Object.values(commandIds)) {
      palette?.addItem({ command, category: 'Monarch' });
    }
    launcher?.add({ command: commandIds.tutorial, category: 'Monarch', rank: 1 });

    panel.statusButton.type = 'button';
    panel.statusButton.className = 'jp-Monarch-status';
    panel.statusButton.title = 'Show the meshes of this notebook';
    panel.statusButton.addEventListener('click', show);
    let wanted = true;
    const item = new Widget({ node: panel.statusButton });
    statusBar?.registerStatusItem('monarch-jupyter:status', {
      item,
      align: 'left',
      rank: 4,
      isActive: () => wanted
    });
    void settings?.load(PLUGIN_ID).then(loaded => {
      const apply = (): void => {
        wanted = loaded.get('statusItem').composite as boolean;
        panel.statusButton.style.display = wanted ? '' : 'none';
        panel.refreshEvery(loaded.get('sessionsEvery').composite as number);
      };
      loaded.changed.connect(apply);
      apply();
    });
  }
};

export default plugin;
