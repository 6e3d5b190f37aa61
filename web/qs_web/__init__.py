"""The page: a client of the queue server that shows it to browsers, and its figures to Prometheus."""
