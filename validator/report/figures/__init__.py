"""Plots of an outcome as plain plotly figures, the same in a page and in a notebook."""
