"""Why VMs cannot migrate, or would lose their connections: every reason at once."""
