"""What GPU memory stands on: the CUDA driver's functions, by ctypes, and what is kept of them.

Lower first: `rounds` and `words` are rules without I/O; `driver` is the one module that knows
libcuda; `gpu` has contexts, streams and openings; `chunks` the pinned memory that bytes pass
through; `arrays` says what memory a tensor or an array has; `exports` is the owner's side of
`cuda_ipc`, `serving` that of sockets. Nothing of the driver is loaded before a process meets memory
of a GPU.
"""
