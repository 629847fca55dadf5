"""PURE: detection of cycles among waiting actors, after Chandy, Misra and Haas."""
