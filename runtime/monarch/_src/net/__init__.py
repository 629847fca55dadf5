"""Bytes between processes: sockets, who may wait on them, peers. The only layer that knows ZeroMQ.

On one host: `pipe` is one connection, `router` all of them, `baton` decides which thread waits,
`node` adds peers and messages, `directory` is where the sockets live. Between hosts: `links`,
by ZeroMQ.
"""
