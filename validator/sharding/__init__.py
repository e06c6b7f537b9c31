"""From shards to logical tensors: placements are read or inferred, planned, and carried out."""

from validator.sharding.parts import owner, ranks_of

__all__ = ["owner", "ranks_of"]
