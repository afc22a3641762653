"""`make demo`: the main job end to end, on a local cluster that it starts and removes itself."""
