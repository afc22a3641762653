"""The node agent: the store, the node plugin, and what serves them to the cluster."""
