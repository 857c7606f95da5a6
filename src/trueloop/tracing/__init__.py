"""Traces a training script: hooks into PyTorch, the events they emit, and state derived from events."""
