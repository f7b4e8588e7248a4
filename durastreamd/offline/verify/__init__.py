"""Whether everything in a data directory is as it must be."""
