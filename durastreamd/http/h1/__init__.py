"""HTTP/1.0 and HTTP/1.1: heads, chunks, one request after the other, and turns without a task."""
