"""Every address of IPAM explained, and a plan for those that nobody has."""
