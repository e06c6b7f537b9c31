"""Real runs on several ranks, each way of sharding: healthy, and with planted faults."""
