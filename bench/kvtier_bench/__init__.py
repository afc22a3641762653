"""The bench: how fast the store is beside the machine's limits and beside its peers. Not part of the daemons.

What it measures and how: docs/benchmarks.md. It uses the store as its users do: a `kvtier-store` process,
its YAML file, and the client.
"""
