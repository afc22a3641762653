"""What is compared: each contender in a process of its own, which copies the same pages to the same kind of memory.

These modules also run in the peers' environment, which has numpy and the peers and nothing of ours: what they
import of the bench must need no more.
"""
