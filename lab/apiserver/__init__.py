"""A Kubernetes API server for the lab: kinds (data), store, patches, registry, HTTP."""
