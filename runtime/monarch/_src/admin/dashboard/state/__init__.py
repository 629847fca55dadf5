"""PURE: from the rows of tables to the messages that the views read."""
