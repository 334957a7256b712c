"""One file per verb: arguments and printing, nothing else."""
