"""kopf: the watches that keep the view current, and the liveness endpoint."""
