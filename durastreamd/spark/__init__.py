"""Streams as Spark data: a source and a sink over HTTP, a source over log files, and jobs."""
