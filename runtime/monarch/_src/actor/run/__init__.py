"""The serving side of an actor: mailbox, thread or event loop, endpoints."""
