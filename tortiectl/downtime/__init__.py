"""How long a migration took, how long its guest stood still, and what the next will take."""
