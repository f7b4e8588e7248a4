"""Commands that look: ls, info, cat, dump, decode-offset, verify."""
