"""Tools for programs that start workers and open sockets of their own: `monarch.tools.network`."""

__all__: list[str] = []
