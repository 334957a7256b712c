"""What every other room stands on; nothing here knows of models, domains or runs."""
