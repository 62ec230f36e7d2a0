"""The kernel adapter: the only place that talks netlink or writes sysctls."""
