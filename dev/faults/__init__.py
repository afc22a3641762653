"""Devices that fail on demand: a FUSE folder or file, small file systems, throttled disks. For tests; needs root."""
