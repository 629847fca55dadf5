"""PURE: leases of sessions and of worker hosts."""
