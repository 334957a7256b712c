"""How good a checkpoint is, at which cost: records, scores, votes, policies, search."""
