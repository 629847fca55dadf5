"""Training that goes on after deaths: groups that are formed again, and state that peers send."""
