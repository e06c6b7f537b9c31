"""What a reader sees of an outcome: terminal text, JSON, a frame."""
