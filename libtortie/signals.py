"""Signals that ask a process to end, told to an event; safe whatever the main thread is doing.

A handler runs between two instructions of the main thread. If that waits for the event it may
hold the event's lock just then, and a handler that sets the event waits for it, for ever. So the
handler does nothing; the interpreter writes the signal's number to a socket as it arrives, and a
thread reads it there. (Blocking the signals for `sigwait` would be inherited by every child.)
"""

from __future__ import annotations

import signal
import socket
import threading


def set_on(event: threading.Event, *numbers: signal.Signals) -> None:
    """Set `event` once one of these signals arrives, from now on. To be called by the main thread,
    once: a process has one such socket."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    arguments = (reader, writer, event, frozenset(map(int, numbers)))
    threading.Thread(target=_relay, args=arguments, name="signals", daemon=True).start()


def _relay(
    reader: socket.socket, writer: socket.socket, event: threading.Event, numbers: frozenset[int]
) -> None:
    """Read numbers of signals; the writer is kept open meanwhile."""
    with reader, writer:
        while not numbers.intersection(reader.recv(64)):
            pass
        event.set()
        while reader.recv(64):
            pass
