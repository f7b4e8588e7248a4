"""Commands that mend: repair, reindex, gc."""
