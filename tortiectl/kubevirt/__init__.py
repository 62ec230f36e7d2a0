"""KubeVirt's objects as an operator's tools read them."""
