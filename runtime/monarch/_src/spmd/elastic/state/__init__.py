"""Pure state machines of training that goes on after deaths."""
