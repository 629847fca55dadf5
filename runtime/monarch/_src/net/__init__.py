"""The only layer that knows ZeroMQ: addresses, the socket, who may wait on it, peers.

`router` is the socket made safe for threads, `baton` decides which thread waits on it, `node` adds
peers and messages, `directory` is where one host's sockets live.
"""
