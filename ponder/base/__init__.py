"""What everything else stands on: errors, the machine, randomness, statistics, files, the terminal."""
