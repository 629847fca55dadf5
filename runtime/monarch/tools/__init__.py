"""Tools for programs: `config` has workspaces, `network` addresses for workers and sockets."""

__all__: list[str] = []
