"""ponder: recursive reasoning models, from training to solvers."""

__version__ = "0.1.0"
