"""Remote functions that come with the package, under Monarch's names. It imports torch."""

from monarch.builtins.log import log_remote, set_logging_level_remote

__all__ = ["log_remote", "set_logging_level_remote"]
