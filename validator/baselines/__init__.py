"""Baselines: runs and figures that are kept, and that later runs are held to.

A baseline is a folder `BASELINES/NAME/`: `baseline.json`, and of a run the reference's capture with the noise
that a candidate is judged by (`reference.h5`), and the candidate's capture where one was recorded. Committed
after review it is a golden. Reading one runs no code.
"""
