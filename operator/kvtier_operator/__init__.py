"""The kvtier operator: resources in, store DaemonSets, CacheNodes and status out."""
