"""Batches without threads: operations of one client that are served together, in a given order."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ipam.batch import Alone, Batches, Operation, Verdict, _Ticket
from ipam.client import IPAMClient
from ipam.witness import Question

Call = Callable[[IPAMClient], object]


class _Captured(BaseException):
    def __init__(self, operation: Operation[Any]) -> None:
        super().__init__()
        self.operation = operation


def captured(client: IPAMClient, call: Call) -> Operation[Any]:
    """The operation that a call would have run."""
    double = copy.copy(client)

    def capture(operation: Operation[Any]) -> object:
        raise _Captured(operation)

    double._run = capture  # type: ignore[method-assign, assignment]  # it never returns
    try:
        call(double)
    except _Captured as caught:
        return caught.operation
    raise AssertionError("the call ran no operation")


def serve(client: IPAMClient, *operations: Operation[Any]) -> list[Verdict]:
    """One batch's verdicts. Raises what kills its leader."""
    batches = client._batches
    assert isinstance(batches, Batches)
    tickets = [_Ticket(operation, threading.Lock()) for operation in operations]
    with client._lock:
        batches._serve(tickets)
    verdicts = [ticket.verdict for ticket in tickets]
    assert all(verdicts)
    return [verdict for verdict in verdicts if verdict is not None]


def together(client: IPAMClient, *calls: Call) -> list[object]:
    """What callers get whose operations are served in one batch; an error is a result.

    Who is asked a question, or has to go on alone, does so after the batch, in the order given.
    """
    operations = [captured(client, call) for call in calls]
    return [
        finished(client, call, operation, verdict)
        for call, operation, verdict in zip(
            calls, operations, serve(client, *operations), strict=True
        )
    ]


def finished(client: IPAMClient, call: Call, operation: Operation[Any], verdict: Verdict) -> object:
    """What a caller makes of its verdict."""
    result = outcome(lambda: client._finish(operation, verdict))
    return outcome(lambda: call(client)) if isinstance(result, Question) else result


def outcome(call: Callable[[], object]) -> object:
    """A call's result or the error that it raises."""
    try:
        return call()
    except Exception as error:
        return error


def alone(verdicts: Sequence[Verdict]) -> list[bool]:
    """Who has to go on alone."""
    return [isinstance(verdict, Alone) for verdict in verdicts]
