"""Copies of the client's directories on hosts: scanned, sent, placed, and reloaded on ranks."""
