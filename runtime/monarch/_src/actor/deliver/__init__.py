"""Routes of messages between actors, and what returns to the sender."""
