"""Bytes on disk. Synchronous; knows frames, files and checksums, not what records mean."""
