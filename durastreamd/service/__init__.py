"""Where exchanges meet streams."""
