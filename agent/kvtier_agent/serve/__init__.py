"""What stands beside the store: HTTP, metrics, and the CacheNode it serves."""
