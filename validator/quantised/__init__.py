"""Weights that are stored as codes with scales, as the values that they stand for."""
