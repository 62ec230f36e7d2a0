"""Values only: resources, keys, names, IPAM records. No I/O, no clock, no hostname."""
