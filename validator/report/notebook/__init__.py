"""Results in a notebook: how they show themselves, and views to explore them with."""
