"""Which set of modules, or of options, explains a divergence that no single edge is to blame for.

Where many small errors add up, hybrids tell: runs in which some modules are the candidate's and the rest the
reference's (`hybrids`), or in which some switches of the target are on (`options`). A hybrid is measured by
what the candidate as a whole is accused of, a KL, a perplexity or a flipped token (`metrics`), against what
rounding alone would do to it (`noise`); a smallest set whose hybrid shows it is searched for (`search`).
"""
