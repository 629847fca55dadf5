/**
 * The comm between one kernel connection and the panel.
 *
 * The kernel opens the comm when `%load_ext monarch_jupyter` runs. A reloaded page has
 * lost the comm, while the kernel still has it: so the page asks the kernel for its comms and reuses that one.
 * Opening another would leave one more behind at each reload, and a kernel without the
 * extension would log an error for every notebook. Code is never executed in the kernel.
 *
 * Owns: the registration of the comm target and the open comm. Runs in: the page.
 */

import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { JSONObject } from '@lumino/coreutils';
import { Signal, type ISignal } from '@lumino/signaling';

import { PendingRequests } from '../../monarch_jupyter/widgets/js/pending.js';
import { EMPTY, reduce, type View } from '../../monarch_jupyter/widgets/js/views.js';
import { parse, TARGET, type Request } from '../../monarch_jupyter/widgets/js/protocol.js';

/** The used part of a kernel connection. */
export type CommKernel = Pick<
  Kernel.IKernelConnection,
  | 'connectionStatus'
  | 'connectionStatusChanged'
  | 'createComm'
  | 'disposed'
  | 'handleComms'
  | 'info'
  | 'isDisposed'
  | 'registerCommTarget'
  | 'removeCommTarget'
  | 'requestCommInfo'
  | 'status'
  | 'statusChanged'
  | 'supportsSubshells'
>;

/** A comm of JupyterLab; in a kernel with subshells it gets one, soon after it was made. */
type SubshellComm = Kernel.IComm & { readonly subshellStarted?: Promise<void> };

/**
 * - asking: the kernel has not said yet whether the extension is loaded;
 * - unloaded: it is not;
 * - opening: a comm is open, no snapshot came yet;
 * - live: the view is up to date;
 * - elsewhere: another connection to the same kernel has its comms;
 * - dead: the kernel's process has ended.
 */
export type LinkState = 'asking' | 'unloaded' | 'opening' | 'live' | 'elsewhere' | 'dead';

const GONE: readonly Kernel.Status[] = ['dead', 'terminating'];
const RESTARTING: readonly Kernel.Status[] = ['restarting', 'autorestarting'];

export class KernelLink {
  constructor(private readonly _kernel: CommKernel) {
    if (!_kernel.handleComms) {
      this._state = 'elsewhere';
      return;
    }
    _kernel.registerCommTarget(TARGET, this._onOpen);
    _kernel.statusChanged.connect(this._onStatus);
    _kernel.connectionStatusChanged.connect(this._onConnection);
    _kernel.disposed.connect(this._onDisposed);
    if (GONE.includes(_kernel.status)) {
      this._state = 'dead';
    } else {
      this._requestComms();
    }
  }

  /** Emitted after the state or the view changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get state(): LinkState {
    return this._state;
  }

  get view(): View {
    return this._view;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Send a request; rejects with the kernel's one-line error, or if the kernel does not answer. */
  ask(what: Request): Promise<unknown> {
    return this._state === 'live'
      ? this._pending.ask(what)
      : Promise.reject(new Error('the kernel of this notebook does not answer now'));
  }

  /** Idempotent. The comm in the kernel stays, for other pages that listen to it. */
  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    if (this._kernel.handleComms && !this._kernel.isDisposed) {
      this._kernel.removeCommTarget(TARGET, this._onOpen);
    }
    this._kernel.statusChanged.disconnect(this._onStatus);
    this._kernel.connectionStatusChanged.disconnect(this._onConnection);
    this._kernel.disposed.disconnect(this._onDisposed);
    this._pending.end('the notebook was closed');
    Signal.clearData(this);
  }

  /** Ask the kernel for its comms, and reuse the panel's if it is there. */
  private _requestComms(): void {
    const asked = ++this._infoRequest;
    this._kernel
      .requestCommInfo({ target_name: TARGET })
      .then(({ content }) => {
        if (asked !== this._infoRequest || this._isDisposed || this._comm !== null) {
          return;
        }
        const known = content.status === 'ok' ? Object.keys(content.comms)[0] : undefined;
        if (known === undefined) {
          this._setState('unloaded');
        } else {
          this._adopt(this._kernel.createComm(TARGET, known));
          this._sync();
        }
      })
      .catch((reason: unknown) => {
        // A kernel that restarts or ends drops the question; its status says what comes next.
        if (asked === this._infoRequest && !this._isDisposed) {
          console.warn(`monarch: the kernel did not tell its comms: ${String(reason)}`);
        }
      });
  }

  private readonly _onOpen = (comm: Kernel.IComm, message: KernelMessage.ICommOpenMsg): void => {
    this._adopt(comm);
    const { data } = message.content;
    if (Object.keys(data).length > 0) {
      this._onMessage(data);
    } else {
      this._sync();
    }
  };

  private _adopt(comm: Kernel.IComm): void {
    this._comm = comm;
    comm.onMsg = message => {
      if (comm === this._comm) {
        this._onMessage(message.content.data);
      }
    };
    comm.onClose = () => {
      if (comm === this._comm) {
        this._reset('unloaded');
      }
    };
    this._view = EMPTY;
    this._setState('opening');
  }

  private _onMessage(data: unknown): void {
    try {
      const message = parse(data);
      if (message.type === 'answer') {
        this._pending.onAnswer(message);
        return;
      }
      if (message.type === 'more') {
        return; // Meant for views of lines, each of which has its own comm.
      }
      const { view, sync } = reduce(this._view, message);
      this._view = view;
      if (sync) {
        this._sync();
      }
    } catch (error) {
      // The kernel has another version: log the message, and keep the known view.
      console.error(`monarch: a message on ${TARGET} was not understood`, error);
      return;
    }
    this._setState(this._view.seq === null ? 'opening' : 'live');
  }

  /** Ask for a snapshot. */
  private _sync(): void {
    this._send({ type: 'sync' });
  }

  /**
   * On the comm's own subshell, where there is one: the kernel's main shell takes no message before the
   * cells that wait in its queue have run.
   */
  private _send(message: JSONObject): void {
    const comm: SubshellComm | null = this._comm;
    const send = (): void => {
      if (comm !== null && comm === this._comm && !comm.isDisposed && !this._kernel.isDisposed) {
        comm.send(message);
      }
    };
    this._kernel.info
      .then(() => (this._kernel.supportsSubshells ? comm?.subshellStarted : undefined))
      .then(send, send);
  }

  private readonly _onDisposed = (): void => {
    this.dispose();
  };

  private readonly _onStatus = (_: unknown, status: Kernel.Status): void => {
    if (GONE.includes(status)) {
      this._reset('dead');
    } else if (RESTARTING.includes(status)) {
      this._restarting = true;
      this._reset('unloaded');
    } else if (this._restarting || this._state === 'dead') {
      this._restarting = false;
      this._reset('unloaded');
    }
  };

  private readonly _onConnection = (_: unknown, status: Kernel.ConnectionStatus): void => {
    if (status !== 'connected') {
      return;
    }
    // What was sent while the line was down is lost, and nothing more may come to show the gap.
    if (this._comm !== null && !this._comm.isDisposed) {
      this._sync();
    } else if (this._state === 'asking') {
      this._requestComms();
    }
  };

  private _reset(state: LinkState): void {
    this._infoRequest++;
    this._comm = null;
    this._pending.end('the kernel has ended, restarted, or unloaded the extension');
    this._view = EMPTY;
    this._setState(state);
  }

  private _setState(state: LinkState): void {
    this._state = state;
    this._changed.emit();
  }

  private _changed = new Signal<this, void>(this);
  private _comm: Kernel.IComm | null = null;
  private _isDisposed = false;
  /** Number of the last question; answers to earlier ones are dropped. */
  private _infoRequest = 0;
  private readonly _pending = new PendingRequests('panel', message =>
    // Plain data, which the type of a request doesn't say.
    this._send(message as unknown as JSONObject)
  );
  private _restarting = false;
  private _state: LinkState = 'asking';
  private _view: View = EMPTY;
}
