"""Trained weights at work: opened, run by one engine, answers and pictures."""
