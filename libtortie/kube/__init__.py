"""The Kubernetes API: objects we read, and the client that reads them."""
