"""PURE: who waits for whom, after Chandy, Misra and Haas."""
