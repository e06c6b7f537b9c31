"""From captures of two sides to a trace: the candidate's run in the reference's names and shapes."""
