"""The client for asyncio: the calls of `kvtier_client.Client`, awaited."""

from .client import AsyncClient

__all__ = ["AsyncClient"]
