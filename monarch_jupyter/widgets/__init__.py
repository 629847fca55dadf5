"""Live views for cells: anywidget classes, each with its plain ESM and CSS file beside it."""
