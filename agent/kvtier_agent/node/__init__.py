"""The node plugin: CSI, the arena mount, directory ownership, per-pod listeners."""
