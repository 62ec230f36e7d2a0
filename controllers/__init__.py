"""Cluster-wide controllers: what runs once for the cluster, beside its API."""
