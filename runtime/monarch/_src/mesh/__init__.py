"""Meshes as programs see them: hosts, procs, actors; and the session they live in.

session (the client's runtime and its host agent) <- proc_mesh <- host_mesh; actor_mesh beside them.
"""
