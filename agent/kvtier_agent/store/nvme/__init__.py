"""The NVMe tier: devices cut into units, segments in them, and what writes, reads, cleans and recovers these.

Pure: `segments`, `device` (all but `open_device`), `records`, `placement`, `health`, `estimate`. Blocking, in a
device's own mover process: `blocks`, `scan`, `io_mover`. On the index process's event loop: the rest.
Formats: docs/formats.md.
"""
