"""Adapters from inference engines to the client."""
