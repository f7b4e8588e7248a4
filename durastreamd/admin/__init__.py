"""The offline tool: look into a data directory, verify it, mend it, carry it elsewhere."""
