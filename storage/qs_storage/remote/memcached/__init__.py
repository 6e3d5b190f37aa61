"""The `memcached` engine: queues in memcached servers, which forget everything when they end."""

from .memcached_engine import MemcachedEngine

__all__ = ["MemcachedEngine"]
