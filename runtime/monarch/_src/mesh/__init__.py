"""Meshes as programs see them (hosts, procs, actors) and the client session that owns them.

session (the client's runtime and its host agent) <- proc_mesh <- host_mesh; actor_mesh beside them.
"""
