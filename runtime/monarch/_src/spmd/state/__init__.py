"""PURE: which collectives wait in vain."""
