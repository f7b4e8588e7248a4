"""Streams as state machines. Pure; time is an argument."""
