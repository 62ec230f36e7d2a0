"""Addresses for VMs that will come."""
