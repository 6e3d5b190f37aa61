"""The commands that work on the directories of queues, and on the journal, without a server."""
