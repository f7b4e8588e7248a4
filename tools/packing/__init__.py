"""tools/build: the tree with its own Python, the executable around it, the .deb, the wheel."""
