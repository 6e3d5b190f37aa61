"""Storages that are not on this machine's disk: queues whose messages another server keeps."""
