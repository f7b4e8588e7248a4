"""What is for operators: health, readiness, metrics, the access log, room on the disk."""
