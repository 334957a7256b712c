"""The model: layers, recurrence, reasoner, and the door to published checkpoints."""
