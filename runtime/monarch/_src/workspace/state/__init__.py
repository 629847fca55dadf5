"""Contents of a workspace, and the changes that make a copy equal to it. No I/O."""
