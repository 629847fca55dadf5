"""What ranks write: read from their pipes, cut into lines, kept for the last words, sent on."""
