"""Conway's Game of Life."""
