"""Refusals of the CNI plugin, each with the CNI error code it is answered with.

Codes 1-99 are the CNI specification's, 100 and up are ours. Errors of the layers below
(`libtortie.errors`) get their codes in `skel.py`; nothing else in the package knows a number.
"""

from __future__ import annotations

from typing import ClassVar

from libtortie.errors import TortieError


class Refusal(TortieError):
    """A request this plugin answers with an error of its own."""

    code: ClassVar[int] = 100


class IncompatibleVersion(Refusal):
    """The `cniVersion` is unknown, or too old for the verb (CNI code 1)."""

    code = 1


class UnsupportedField(Refusal):
    """A network configuration key that this plugin does not know (CNI code 2)."""

    code = 2


class UnknownContainer(Refusal):
    """The network namespace or sandbox named does not exist (CNI code 3)."""

    code = 3


class InvalidEnvironment(Refusal):
    """A `CNI_*` variable is missing or refused (CNI code 4)."""

    code = 4


class Undecodable(Refusal):
    """Standard input is not a JSON object of acceptable size (CNI code 6)."""

    code = 6


class InvalidConfig(Refusal):
    """A network configuration value is refused (CNI code 7)."""

    code = 7


class NotReady(Refusal):
    """The plugin cannot serve ADD now (CNI code 50, the answer to STATUS)."""

    code = 50


class Impaired(NotReady):
    """As `NotReady`, and what runs already may lack connectivity or policy (CNI code 51)."""

    code = 51


class PolicyLate(Refusal):
    """Policy was not in force in time, and the configuration wants no pod without (CNI code 11)."""

    code = 11


class IdentityRefused(Refusal):
    """A pod whose claim to be a VM, or to be itself, does not hold against the API."""

    code = 101


class AttachmentConflict(Refusal):
    """An interface name or a route is in the way of this attachment; both are named."""

    code = 108


class CheckFailed(Refusal):
    """CHECK found the attachment different from what ADD made."""

    code = 110
