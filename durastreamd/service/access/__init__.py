"""Who may use the server, and for what: files and settings that say so, and the gate itself."""
