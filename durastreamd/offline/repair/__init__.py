"""What can be saved of a damaged directory, and how it is laid out anew."""
