"""The floor everything stands on: model, datastore, Kubernetes client, kernel adapter."""
