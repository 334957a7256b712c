"""Language models on the same puzzles, judged by the same checkers."""
