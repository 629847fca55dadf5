"""Bulk bytes beside the control path: registered memory, a file a transport, one choice a pair.

Modules, lower layers first: `memory`, `handle` and `key_table` know no other process.
`shared_segments`, `regions` and `transports.local_peer` know this process's side and its peer's.
The transports (same process, `shm`, `cma`, `cuda_ipc`, `ibverbs`, `tcp`) move bytes. `plane`
combines them; `buffer` is the interface for users.

State dicts build on that, in `weights`: `layout`, `reshard` and `snapshot` are rules without I/O,
`publish` and `pull` are the two sides. `arrays` knows tensors from arrays.
"""
