"""`monarch mcp`: the state of sessions as tools of the Model Context Protocol, for AI agents."""
