"""Queues of the server in the layouts of dirq, shared live with other programs that use dirq."""
