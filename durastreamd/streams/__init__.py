"""One trio task per live stream: the thin async shell around the engine."""
