"""Models whose weights stay on the disk: each is read from the checkpoint when an operator meets it."""
