"""Bulk bytes beside the control path: registered memory, a file a transport, one choice a pair.

Layers in here, lower first: `kernel`, `memory`, `handle`, `keys`, `choice` know no other process;
`segments`, `regions`, `peer` know this process's side and the other's; the transports (`local`,
`shm`, `cma`, `ibverbs` on `verbs`, `tcp`) move bytes; `plane` puts them together, `buffer` is what
users hold.

State dicts stand on that: `layout`, `resharding`, `snapshot` are rules without I/O, `arrays` knows
tensors from arrays, `publishing` and `pulling` are the two sides.
"""
