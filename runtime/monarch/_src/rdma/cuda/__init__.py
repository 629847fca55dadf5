"""The parts of GPU memory: the CUDA driver's functions, by ctypes, and their resources.

Lower layers first: `staging_schedule` and `export_table` are rules without I/O; only `driver` knows
libcuda; `devices` has contexts, streams and openings; `pinned_chunks` the pinned memory that bytes
pass through; `gpu` the one object of a process that has both; `arrays` finds the memory of a tensor
or an array; `exports` is the owner's side of `cuda_ipc`, `socket_copy` that of sockets. Nothing of
the driver is loaded before a process uses memory of a GPU.
"""
