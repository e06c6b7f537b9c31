"""Day 0 of a port: all that must hold of it, in one command, correctness before speed."""
