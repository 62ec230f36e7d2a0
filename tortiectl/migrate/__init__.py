"""Moving one VM: asking for it, and what happens then."""
