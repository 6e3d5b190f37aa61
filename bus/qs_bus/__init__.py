"""The bus: pushes new messages of the queue server to subscribers."""
