"""One migration as one timeline."""
