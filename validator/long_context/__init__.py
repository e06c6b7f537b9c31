"""What must hold of a port in long contexts: errors by position, caches, memory, shared prefixes.

A port is driven through chunked prefill and decoding on every rank (`driving`). What it says at each position
is held to the reference in float64 (`noise`, `position_errors`), what its caches hold to what attention needs
(`cache_views`, `occupancy`), what it keeps beside them to nothing (`meters`, `growth`).
"""
