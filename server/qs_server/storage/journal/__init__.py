"""The `journal` engine: what is asked for is durable in one append-only journal; the files of messages come later."""
