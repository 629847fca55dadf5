"""The history of calls, messages, spans and log records, kept while it is switched on."""
