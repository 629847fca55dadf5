"""PURE: segment leases and outstanding fetches."""
