"""Scores of a candidate end to end: what it generates and reads, and from a bad score to a layer."""
