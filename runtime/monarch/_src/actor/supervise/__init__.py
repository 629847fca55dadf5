"""Owners, failures and the hooks that decide about them."""
