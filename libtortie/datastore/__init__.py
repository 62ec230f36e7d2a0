"""The datastore port and its backends."""
