"""The loop and everything that changes in it."""
