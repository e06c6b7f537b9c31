"""Exercise one operator family by itself, with inputs on which its faults show.

What is exercised is content, a file of `probes/` that yields cases (`cases(world_size)`). A case knows
how to run on the ranks and returns what each rank observed:

| case | asks |
|---|---|
| `ExactCase` | is the answer of a collective the exact one, on every rank? |
| `OrderCase` | where it rounds: is it deterministic, in which order and format does it add? |
| `OverlapCase` | does an overlapped run have the bits of a synchronised one? |
| `BandwidthCase` | how many bytes a second? Figures, never a verdict |

Every rank can make every rank's inputs, so each finds by itself what is wrong with what it got;
`problems` puts the ranks together and says which rank is guilty.
"""
