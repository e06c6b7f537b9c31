"""Determinism: what of a candidate's bits may change with the run, the batch and the number of cards.

| level | module | demanded |
|---|---|---|
| D0 run to run, on the same cards | `run_to_run` | the same bits |
| D0 what memory holds before it is written | `memory` | the same bits, whatever it holds |
| D1 size of the batch, position in it | `batching` | the same bits, else what rounding explains |
| D1 prompt in chunks | `chunking` | the same bits, else what rounding explains |
| D2 number of cards | `card_counts` | the same bits where no sum is over ranks, else what rounding explains |

`runs` makes the captures that all of these compare, all of one number of ranks in one launch. What rounding
explains is told by the float64 oracle (`explained`), never by a tolerance. Each level has a control
(`controls`): the same candidate with a planted fault, which must be seen, or the answer proves nothing. A run
that the candidate can't do, such as a batch of a size that it is not compiled for, is told as not applicable.
"""
