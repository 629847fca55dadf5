"""The web dashboard: one page with the views of the notebook, served by the admin server."""
