"""Actors: how they are defined, called, run and supervised, in the client and in procs.

`endpoint` defines them; `call` sends calls, `deliver` carries them, `run` executes them, and
`supervise` handles their failures. `runtime` joins these parts, once for each process.
"""
