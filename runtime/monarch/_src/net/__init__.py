"""Messages between processes: sockets, the threads that wait on them, and peers.

`node` is the messaging of one process. `local` connects the processes of one host: `pipe` is one
connection, `router` all of them, and `leader` decides which thread waits. `hosts` connects hosts by
ZeroMQ links, and `tunnel` reaches hosts through a gateway.
"""
