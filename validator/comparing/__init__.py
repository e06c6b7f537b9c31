"""Comparing two captures without a model: figures of every tensor, and verdicts where noise is known."""
