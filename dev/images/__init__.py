"""The project's container images, built on this machine without a registry."""
