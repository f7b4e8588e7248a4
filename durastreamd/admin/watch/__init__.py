"""Commands that watch a stream or a server: tail, top."""
