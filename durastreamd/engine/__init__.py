"""Model and storage joined: the durable state machine. Synchronous; clocks come from above."""
