"""What a cache of a given size makes of a trace of requests: the store's own policies, and the offline optimum."""
