"""Inside of a module's code: which of its operators is behind an edge that diverges.

The operators that the reference's code calls are in `checks.operator_log`.

- `alignment`: which of the candidate's operators stands for which of these, by sequence alignment.
- `reruns`: some of them again, from given values, as code that can be judged.
- `given`: what the candidate's operators were given.
- `culprit`: finds the place from which on the edge is wrong, and the operator there.
- `naming`: what that is called: as in the reference, or as what only the candidate has.
"""
