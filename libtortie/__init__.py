"""The floor everything stands on: model, datastore, Kubernetes client, kernel adapter."""

__version__ = "0.1.0"
