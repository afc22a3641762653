"""For people who work on kvtier: the local cluster, the images and the demo."""
