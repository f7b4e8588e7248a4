"""Found by Spark through its name: the format ``durastream``."""
