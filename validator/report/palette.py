"""The colours of plots and pages: Okabe and Ito's (2008), told apart whatever a reader's colour vision.

They are the same on light and on dark ground. None of them says anything alone: a word or a symbol does too.
"""

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PALETTE",
    "PURPLE",
    "SKY",
    "STYLES",
    "VERMILLION",
]

BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
VERMILLION, PURPLE, SKY, GREY = "#D55E00", "#CC79A7", "#56B4E9", "#808080"
PALETTE = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY)
"""Of things that are told apart and mean nothing by themselves, such as runs."""

STYLES = {"green": BLUE, "red": VERMILLION, "yellow": ORANGE, "magenta": PURPLE}
"""What stands for a terminal's colours, which a `Screen` has, in pages: its green verdicts are blue."""
