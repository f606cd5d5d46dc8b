"""Which rule of a pool acts at which step."""
