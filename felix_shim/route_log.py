"""One log line for what became of the routes to one address, or of a sign. No decisions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from felix_shim.drivers.routetable import Outcome
from felix_shim.events import Sign
from felix_shim.migration import RAISED, why_dropped
from felix_shim.roster import Local
from felix_shim.settings import Settings
from libtortie.jsonlog import Log
from libtortie.linux.port import Route

NOTHING: Mapping[str, object] = MappingProxyType({})


def tell_dropped(log: Log, local: Local, sign: Sign) -> None:
    """Of a sign that changed nothing: a warning, once an episode, where the VM is elsewhere."""
    reason = why_dropped(local.machine, sign.episode)
    is_news = reason == "elsewhere" and local.disputed != sign.episode
    if is_news:
        local.disputed = sign.episode
    tell = log.warning if is_news else log.debug
    tell("sign_dropped", endpoint=local.id, kind=sign.kind, reason=reason)


def tell_route(
    log: Log,
    local: Local | None,
    outcome: Outcome,
    settings: Settings,
    heard: Mapping[str, object] = NOTHING,
) -> None:
    """Of an endpoint, if the address is one's. `heard` is what is told of the sign behind it."""
    about: dict[str, object] = {"dst": outcome.dst}
    if local is not None:
        about |= {"endpoint": local.id, "episode": local.machine.episode}
    about |= heard
    if outcome.error:
        log.warning("route_failed", **about, reason=outcome.error)
        return
    if not outcome.added and not outcome.deleted:
        if heard:
            log.warning("route_waits_for_policy", **about)
        return
    raised = local is not None and local.machine.state in RAISED
    reverted = any(_is_raised(route, settings) for route in outcome.deleted)
    event = "route_raised" if raised else "route_reverted" if reverted else "route_changed"
    log.info(
        event,
        **about,
        metrics=[route.priority for route in outcome.added],
        removed=[route.priority for route in outcome.deleted],
    )


def _is_raised(route: Route, settings: Settings) -> bool:
    priorities = settings.ipv4 if route.dst.version == 4 else settings.ipv6
    return route.priority == priorities.elevated
