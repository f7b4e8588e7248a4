"""Commands that carry data elsewhere: export, import, backup, restore."""
