/** Data of the server that no kernel has: sessions on its machine, and the tutorials. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { parseSessions, type Session } from '../../monarch_jupyter/widgets/js/protocol.js';

/** Thrown if the server lacks the extension; the text has the remedy. */
export class ServerLacksMonarch extends Error {
  constructor() {
    super(
      'The Jupyter server does not know Monarch, so sessions without a kernel are not listed. Install ' +
        'monarch-jupyter where the server runs, or run: jupyter server extension enable monarch_jupyter.server_extension'
    );
  }
}

export async function fetchSessions(settings: ServerConnection.ISettings): Promise<Session[]> {
  return parseSessions(await fetched(settings, 'sessions'));
}

/** The first tutorial, as a notebook. */
export async function fetchTutorial(settings: ServerConnection.ISettings): Promise<unknown> {
  const { tutorials } = (await fetched(settings, 'tutorials')) as { tutorials: string[] };
  const [first] = tutorials;
  if (first === undefined) {
    throw new Error('No tutorial is installed beside monarch-jupyter.');
  }
  return fetched(settings, 'tutorials', first);
}

async function fetched(settings: ServerConnection.ISettings, ...path: string[]): Promise<unknown> {
  const url = URLExt.join(settings.baseUrl, 'monarch', ...path);
  const response = await ServerConnection.makeRequest(url, {}, settings);
  if (response.status === 404) {
    throw new ServerLacksMonarch();
  }
  if (!response.ok) {
    throw new ServerConnection.ResponseError(response);
  }
  return response.json();
}
