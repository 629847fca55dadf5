"""Running an actor: its mailbox, its thread or event loop, its endpoints."""
