"""Paused ranks in the notebook and in JupyterLab's debugger."""
