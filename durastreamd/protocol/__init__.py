"""What clients and server say to each other. Pure: no files, no clock, no event loop."""

# A body: bytes, or for a large one a view of the memory it was received into.
Data = bytes | memoryview
