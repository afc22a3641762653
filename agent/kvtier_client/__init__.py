"""The client: lookup, get and put against the local agent. Failure is a miss."""
