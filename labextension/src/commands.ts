/** The commands of the palette, the menu of which is the palette itself. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { showErrorMessage } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import type { LabIcon } from '@jupyterlab/ui-components';

import type { PanelView } from './panel.js';
import { fetchTutorial } from './sessions.js';

export const commandIds = {
  meshes: 'monarch:show-meshes',
  newMesh: 'monarch:new-mesh',
  lines: 'monarch:show-lines',
  tutorial: 'monarch:open-tutorial'
} as const;

const TUTORIAL = 'monarch-tutorial.ipynb';

export interface Stage {
  readonly icon: LabIcon;
  readonly panel: PanelView;
  /** Bring the panel to the front. */
  readonly show: () => void;
}

export function addCommands(app: JupyterFrontEnd, { icon, panel, show }: Stage): void {
  app.commands.addCommand(commandIds.meshes, {
    label: 'Monarch: Show Meshes',
    caption: 'Meshes of the current notebook, and sessions on the machine of its server',
    icon,
    execute: show
  });
  app.commands.addCommand(commandIds.newMesh, {
    label: 'Monarch: New Mesh',
    caption: 'Spawn a mesh that is bound in the current notebook',
    icon,
    execute: () => {
      show();
      panel.focusNewMesh();
    }
  });
  app.commands.addCommand(commandIds.lines, {
    label: 'Monarch: Show Lines of Ranks',
    caption: 'What the ranks of the current notebook have written',
    icon,
    execute: () => {
      show();
      panel.showLines();
    }
  });
  app.commands.addCommand(commandIds.tutorial, {
    label: args => (args.isLauncher === true ? 'Tutorial' : 'Monarch: Open Tutorial'),
    caption: 'A first mesh of processes and actors, in a notebook of your own',
    icon,
    execute: args => openTutorial(app, typeof args.cwd === 'string' ? args.cwd : '')
  });
}

/** A copy of the tutorial in that folder; one that is there already is opened as it is. */
async function openTutorial(app: JupyterFrontEnd, folder: string): Promise<void> {
  const { contents, serverSettings } = app.serviceManager;
  const path = PathExt.join(folder, TUTORIAL);
  try {
    const there = await contents.get(PathExt.dirname(path), { content: true });
    const items = there.content as readonly { readonly name: string }[];
    if (!items.some(({ name }) => name === TUTORIAL)) {
      const content: unknown = await fetchTutorial(serverSettings);
      await contents.save(path, { type: 'notebook', format: 'json', content });
    }
    await app.commands.execute('docmanager:open', { path, factory: 'Notebook' });
  } catch (error) {
    await showErrorMessage('The tutorial cannot be opened', error as Error);
  }
}
