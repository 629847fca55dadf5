"""The admin API: a server of the state of sessions over HTTP, its client, and a terminal view.

Nothing here runs in agents or ranks: agents answer the requests of observers, as for `monarch ps`.
"""
