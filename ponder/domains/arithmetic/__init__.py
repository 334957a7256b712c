"""Arithmetic in postfix form."""
