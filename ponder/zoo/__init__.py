"""The trained models that are shipped, and their cards."""
