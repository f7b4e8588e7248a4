"""What one task does for thousands of connections: deadlines, arrivals, hang-ups."""
