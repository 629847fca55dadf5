"""One file for each way that bulk bytes travel."""
