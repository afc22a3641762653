"""The effects: requests to the API server, and the carrying out of plans."""
