"""Emptying a node: what becomes of its VMs, and how it goes."""
