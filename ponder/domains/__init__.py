"""The puzzles: one contract, and a room for each domain."""
