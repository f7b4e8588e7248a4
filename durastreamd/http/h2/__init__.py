"""HTTP/2: one reader, one sender, a task for each exchange, and what a client may cost."""
