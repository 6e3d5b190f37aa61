"""The `memcached` engine: queues in memcached servers, which forget everything when they end."""

from .engine import MemcachedEngine

__all__ = ["MemcachedEngine"]
