import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';

import type { Kernel, KernelMessage } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

import { KernelLink, type CommKernel } from '../src/kernel_comm.js';
import { TARGET } from '../../monarch_jupyter/widgets/js/protocol.js';
import { delta, mesh, snapshot } from './meshes.js';

type OnOpen = Parameters<CommKernel['registerCommTarget']>[1];

/** Ends when all has run that was due when it was called. */
function settled(): Promise<void> {
  return new Promise(done => setImmediate(done));
}

/** A comm whose kernel side is the test. */
class TestComm {
  constructor(readonly commId: string) {}
  readonly subshell = deferred<undefined>();
  readonly subshellStarted: Promise<unknown> = this.subshell.promise;
  isDisposed = false;
  onMsg: (message: KernelMessage.ICommMsgMsg) => unknown = () => undefined;
  onClose: () => void = () => undefined;
  readonly sent: unknown[] = [];
  send(data: unknown): void {
    this.sent.push(data);
  }
  receive(data: unknown): void {
    this.onMsg({ content: { data } } as KernelMessage.ICommMsgMsg);
  }
}

/** A kernel connection that answers what the test tells it to. */
class TestKernel {
  connectionStatus: Kernel.ConnectionStatus = 'connected';
  status: Kernel.Status = 'idle';
  handleComms = true;
  isDisposed = false;
  supportsSubshells = false;
  readonly info = Promise.resolve();
  readonly statusChanged = new Signal<this, Kernel.Status>(this);
  readonly connectionStatusChanged = new Signal<this, Kernel.ConnectionStatus>(this);
  readonly disposed = new Signal<this, void>(this);
  readonly targets = new Map<string, OnOpen>();
  readonly taken = new Map<string, TestComm>();
  readonly answers: ((comms: string[]) => Promise<void>)[] = [];

  registerCommTarget(name: string, callback: OnOpen): void {
    this.targets.set(name, callback);
  }
  removeCommTarget(name: string): void {
    this.targets.delete(name);
  }
  createComm(_target: string, id: string): TestComm {
    const comm = new TestComm(id);
    this.taken.set(id, comm);
    return comm;
  }
  requestCommInfo(): Promise<unknown> {
    const { promise, resolve } = deferred<unknown>();
    this.answers.push(async ids => {
      const comms = Object.fromEntries(ids.map(id => [id, { target_name: TARGET }]));
      resolve({ content: { status: 'ok', comms } });
      await promise;
    });
    return promise;
  }

  /** Answers the oldest question. */
  async answer(...comms: string[]): Promise<void> {
    const answer = this.answers.shift();
    assert.ok(answer, 'nobody asked');
    await answer(comms);
  }
  /** What `%load_ext monarch_jupyter` does. */
  load(data: object = {}): TestComm {
    const comm = new TestComm('loaded');
    const callback = this.targets.get(TARGET);
    assert.ok(callback, 'nobody registered the target');
    void callback(
      comm as unknown as Kernel.IComm,
      { content: { data } } as KernelMessage.ICommOpenMsg
    );
    return comm;
  }
  become(status: Kernel.Status): void {
    this.status = status;
    this.statusChanged.emit(status);
  }
}

function deferred<T>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>(done => {
    resolve = done;
  });
  return { promise, resolve };
}

describe('the link to a kernel', () => {
  let kernel: TestKernel;
  const connect = (): KernelLink => new KernelLink(kernel as unknown as CommKernel);
  const names = (link: KernelLink): string[] => [...link.view.meshes.keys()];

  beforeEach(() => {
    kernel = new TestKernel();
  });

  test('waits for the answer of a kernel before it says that the extension is missing', async () => {
    const link = connect();
    assert.equal(link.state, 'asking');
    await kernel.answer();
    assert.equal(link.state, 'unloaded');
  });

  test('shows what the kernel sends once the extension is loaded', async () => {
    const link = connect();
    await kernel.answer();
    const comm = kernel.load();
    assert.equal(link.state, 'opening');
    await settled();
    assert.deepEqual(comm.sent, [{ type: 'sync' }]);
    comm.receive(snapshot(1, mesh('a')));
    comm.receive(delta(2, [mesh('b')]));
    assert.equal(link.state, 'live');
    assert.deepEqual(names(link), ['a', 'b']);
  });

  test('takes a snapshot that comes with the opening of the comm', () => {
    const link = connect();
    kernel.load(snapshot(1, mesh('a')));
    assert.equal(link.state, 'live');
    assert.deepEqual(names(link), ['a']);
  });

  test('takes up the comm that the kernel kept over a reload of the page', async () => {
    const link = connect();
    await kernel.answer('kept');
    const comm = kernel.taken.get('kept');
    assert.ok(comm);
    await settled();
    assert.deepEqual(comm.sent, [{ type: 'sync' }]);
    comm.receive(snapshot(41, mesh('a')));
    assert.equal(link.state, 'live');
    assert.deepEqual(names(link), ['a']);
  });

  test('asks on the subshell of the comm, which answers while cells run', async () => {
    kernel.supportsSubshells = true;
    connect();
    const comm = kernel.load();
    await settled();
    assert.deepEqual(comm.sent, []);
    comm.subshell.resolve(undefined);
    await settled();
    assert.deepEqual(comm.sent, [{ type: 'sync' }]);
  });

  test('asks a kernel that has closed the comm meanwhile for nothing', async () => {
    kernel.supportsSubshells = true;
    connect();
    const comm = kernel.load();
    comm.onClose();
    comm.subshell.resolve(undefined);
    await settled();
    assert.deepEqual(comm.sent, []);
  });

  test('asks for a snapshot when a number is missing', async () => {
    const link = connect();
    const comm = kernel.load(snapshot(1, mesh('a')));
    comm.receive(delta(3, [mesh('b')]));
    await settled();
    assert.deepEqual(comm.sent, [{ type: 'sync' }]);
    assert.deepEqual(names(link), ['a']);
  });

  test('asks for a snapshot when a lost connection is back', async () => {
    connect();
    const comm = kernel.load(snapshot(1));
    kernel.connectionStatusChanged.emit('connecting');
    await settled();
    assert.deepEqual(comm.sent, []);
    kernel.connectionStatusChanged.emit('connected');
    await settled();
    assert.deepEqual(comm.sent, [{ type: 'sync' }]);
  });

  test('keeps what it shows when a message is not understood', t => {
    const complained = t.mock.method(console, 'error', () => undefined);
    const link = connect();
    const comm = kernel.load(snapshot(1, mesh('a')));
    comm.receive({ type: 'riddle' });
    assert.equal(complained.mock.callCount(), 1);
    assert.deepEqual(names(link), ['a']);
    comm.receive(delta(2, [mesh('b')]));
    assert.deepEqual(names(link), ['a', 'b']);
  });

  test('forgets all when the kernel restarts, and can be opened again', () => {
    const link = connect();
    const before = kernel.load(snapshot(1, mesh('a')));
    kernel.become('restarting');
    assert.equal(link.state, 'unloaded');
    assert.deepEqual(names(link), []);
    before.receive(snapshot(2, mesh('late')));
    assert.equal(link.state, 'unloaded');
    assert.deepEqual(names(link), []);
    kernel.become('idle');
    kernel.load(snapshot(1, mesh('b')));
    assert.deepEqual(names(link), ['b']);
  });

  test('drops the answer to a question that a restart overtook', async () => {
    const link = connect();
    kernel.become('restarting');
    await kernel.answer('kept');
    assert.equal(link.state, 'unloaded');
    assert.equal(kernel.taken.size, 0);
  });

  test('says that the kernel ended, and that it started again', () => {
    const link = connect();
    kernel.load(snapshot(1, mesh('a')));
    kernel.become('dead');
    assert.equal(link.state, 'dead');
    kernel.become('idle');
    assert.equal(link.state, 'unloaded');
  });

  test('says that the extension is gone when the kernel closes the comm', () => {
    const link = connect();
    kernel.load(snapshot(1, mesh('a'))).onClose();
    assert.equal(link.state, 'unloaded');
  });

  test('leaves a connection alone that has no comms', () => {
    kernel.handleComms = false;
    const link = connect();
    assert.equal(link.state, 'elsewhere');
    assert.equal(kernel.targets.size, 0);
    assert.equal(kernel.answers.length, 0);
  });

  test('unregisters at its end, which may come twice', () => {
    const link = connect();
    link.dispose();
    link.dispose();
    assert.equal(kernel.targets.size, 0);
  });

  test('takes up no comm that the kernel names after the end', async () => {
    connect().dispose();
    await kernel.answer('kept');
    assert.equal(kernel.taken.size, 0);
  });

  test('tells of every change', () => {
    const link = connect();
    const seen: string[] = [];
    link.changed.connect(() => seen.push(link.state));
    kernel.load().receive(snapshot(1));
    kernel.become('restarting');
    assert.deepEqual(seen, ['opening', 'live', 'unloaded']);
  });
});
