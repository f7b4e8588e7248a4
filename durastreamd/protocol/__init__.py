"""What clients and server say to each other. Pure: no files, no clock, no event loop."""
