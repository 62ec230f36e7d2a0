"""A read-only page about the cluster: VMs, migrations, IPAM's use, problems.

`read` and `shelf` read, bounded; `machines`, `moves`, `pools`, `problems` make values of it;
`site` answers a request by `render`. Nothing here writes to the datastore or to the API.
"""
