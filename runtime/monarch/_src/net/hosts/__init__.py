"""Sockets between hosts; the only importer of ZeroMQ."""
