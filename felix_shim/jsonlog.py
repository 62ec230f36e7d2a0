"""The agent's log is the one of all daemons (`libtortie.jsonlog`)."""

from libtortie.jsonlog import JsonLog, Level, Log, LoggingBridge, NullLog, Stream, open_log

__all__ = ["JsonLog", "Level", "Log", "LoggingBridge", "NullLog", "Stream", "open_log"]
