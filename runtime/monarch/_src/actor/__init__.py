"""Actors: how they are defined, called and run, in the client and in procs.

endpoint (what may be called) -> remote (failures that travel) -> future, runtime (one a process)
-> cell (runs one actor) -> proc_main (the main program of a proc).
"""
