"""One line of HELP for each metric, as Prometheus shows it. docs/monitoring.md says more."""

FIGURES = {
    "build_info": "The version of the program, of Python, and of the library that reads XML. Always 1.",
    "start_time_seconds": "When the program was started, in seconds since the Epoch.",
    "connections": "Connections that are open.",
    "connections_opened_total": "Connections that were accepted.",
    "requests_total": "Requests that were answered. code: 200, or that of the error.",
    "request_duration_seconds": "Time from a request to its answer, without what a receive was told to wait.",
    "bytes_received_total": "Bytes received from clients.",
    "bytes_sent_total": "Bytes sent to clients.",
    "auth_failures_total": "Requests refused with 401, 403 or 429, by reason.",
    "messages_pushed_total": "Messages stored.",
    "messages_received_total": "Messages handed out, each time counted.",
    "messages_redelivered_total": "Messages handed out that had been handed out before.",
    "messages_deleted_total": "Messages deleted by consumers.",
    "messages_released_total": "Messages given back by consumers.",
    "messages_expired_total": "Messages whose visibility window ended before they were deleted.",
    "messages_dead_lettered_total": "Messages moved to a dead-letter queue, by reason.",
    "messages_retired_total": "Messages removed because they were older than their queue keeps them.",
    "messages_ready": "Messages that are visible now.",
    "queues": "Queues of this server.",
    "queues_paused": "Queues that are paused.",
    "journal_bytes": "Bytes of the journal's segments.",
    "journal_live_bytes": "Bytes of the journal that are still needed.",
    "journal_segments": "Segments of the journal.",
    "journal_sync_seconds": "Time of a write to the journal that has to survive a power loss.",
    "journal_failed": "1 after the disk failed: everything is refused until the server is started again.",
    "journal_compacted_bytes_total": "Bytes copied to make room.",
    "cache_bytes": "Bytes of messages that are kept in memory.",
    "disk_free_bytes": "Bytes free on the disk of the queues.",
    "memory_resident_bytes": "Bytes of memory that the process has.",
    "open_files": "Files and sockets that the process has open.",
    "tls_certificate_expiry_time_seconds": "When the certificate ends, in seconds since the Epoch.",
    "subscriptions": "Subscriptions that are open.",
    "waiting_receives": "Receives that wait for a message.",
}
"""Help for the figures of the server, and those that the bus shares with it, by name. A figure that is not here has no
help."""

BUS = {
    "up": "1 if the bus answered this scrape.",
    "server_connected": "1 if the bus is connected to its queue server.",
    "subscribers": "Clients of the bus with a subscription.",
    "deliveries_total": "Messages sent to subscribers: one for each that a message goes to.",
    "unacknowledged": "Messages that were sent to subscribers and are not handled.",
    "held": "Messages that wait for subscribers which are too slow for them.",
    "disconnected_total": "Subscribers that were disconnected because they were too slow, by reason.",
}
"""Help for the figures that only the bus has. Its metrics begin with qs_bus_."""

TOTALS = {
    "up": "1 if the server answered this scrape.",
}
"""Help for the metrics that the page itself adds."""

QUEUES = {
    "queue_messages": "Messages of the queue, by state.",
    "queue_bytes": "Bytes of the queue's messages.",
    "queue_oldest_ready_timestamp_seconds": "When the oldest message was pushed, in seconds since the Epoch.",
    "queue_paused": "1 while the queue is paused.",
    "queue_subscriptions": "Subscriptions to the queue.",
    "queue_waiting_receives": "Receives that wait for a message of the queue.",
    "queue_messages_pushed_total": "Messages pushed to the queue since the server started.",
    "queue_messages_received_total": "Messages handed out, each time counted.",
    "queue_messages_deleted_total": "Messages deleted by consumers.",
    "queue_messages_expired_total": "Messages whose visibility window ended before they were deleted.",
    "queue_messages_dead_lettered_total": "Messages moved to the dead-letter queue.",
    "queue_messages_retired_total": "Messages removed because they were older than the queue keeps them.",
}
"""Help for the figures of each queue."""
