"""The agent's complaints are told as every daemon's (`libtortie.complaint`)."""

from libtortie.complaint import Complaint

__all__ = ["Complaint"]
