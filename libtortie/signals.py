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


def set_on(
    event: threading.Event, *numbers: signal.Signals, again: threading.Event | None = None
) -> None:
    """Set `event` once one of these signals arrives, from now on, and `again` at the next one.

    To be called by the main thread, once: a process has one such socket.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    events = (event,) if again is None else (event, again)
    arguments = (reader, writer, events, frozenset(map(int, numbers)))
    threading.Thread(target=_relay, args=arguments, name="signals", daemon=True).start()


def _relay(
    reader: socket.socket,
    writer: socket.socket,
    events: tuple[threading.Event, ...],
    numbers: frozenset[int],
) -> None:
    """Read numbers of signals; the writer is kept open meanwhile."""
    left = list(events)
    with reader, writer:
        while told := reader.recv(1):
            if left and numbers.intersection(told):
                left.pop(0).set()
