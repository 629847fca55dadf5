"""SQL over the live state of a session: tables, their collection from hosts, and the engine."""
