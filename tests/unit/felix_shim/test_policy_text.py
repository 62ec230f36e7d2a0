"""Rules as values and as nft text."""

from __future__ import annotations

import itertools
from ipaddress import ip_address
from pathlib import Path

import pytest

from felix_shim.drivers.nftables_text import render, render_delta
from felix_shim.model import Endpoint, EndpointId, VMRef
from felix_shim.policy import EndpointPolicy, compile_endpoint, policy_set
from libtortie.errors import InvalidInput
from libtortie.model.felix_values import EndpointToHost

GOLDEN = Path(__file__).with_name("golden_policy.nft")


def endpoint(interface: str, mac: str, *addresses: str, vm: bool = False) -> EndpointPolicy:
    return EndpointPolicy(interface, mac, tuple(map(ip_address, addresses)), vm=vm)


ONE = endpoint("cali0000000000a", "02:00:00:00:00:0a", "10.65.0.2")
TWO = endpoint("cali0000000000b", "02:00:00:00:00:0b", "10.65.0.3", "fd00:65::3", vm=True)


def attachment(**changes: object) -> Endpoint:
    values: dict[str, object] = {
        "id": EndpointId("default", "web-0"),
        "orchestrator": "k8s",
        "workload": "default/web-0",
        "interface": "cali0000000000a",
        "mac": "02:00:00:00:00:0A",
        "addresses": (ip_address("10.65.0.2"), ip_address("10.65.0.2")),
        "container_id": "c1",
    }
    return Endpoint(**(values | changes))  # type: ignore[arg-type]  # test data


def test_an_endpoint_compiles_to_its_binding() -> None:
    assert compile_endpoint(attachment()) == ONE
    vm = VMRef("default", "web", "uid", "handle")
    assert compile_endpoint(attachment(vm=vm)).vm


@pytest.mark.parametrize(
    "change",
    [
        {"interface": "eth0"},
        {"interface": "cali"},
        {"interface": 'cali" accept'},
        {"interface": "cali000000000000a"},
        {"interface": "cali0\n"},
        {"mac": ""},
        {"mac": "02:00:00:00:00"},
        {"mac": "02:00:00:00:00:0a\n"},
    ],
)
def test_what_cannot_be_written_into_a_rule_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        compile_endpoint(attachment(**change))


def test_the_order_of_endpoints_does_not_matter() -> None:
    rival = endpoint("cali0000000000a", "02:00:00:00:00:0c", "10.65.0.9")
    texts = {render(policy_set(some)) for some in itertools.permutations([ONE, TWO, rival])}
    assert len(texts) == 1


def test_golden_text() -> None:
    assert render(policy_set([ONE, TWO])) == GOLDEN.read_text()


def test_no_difference_is_no_command() -> None:
    assert render_delta(policy_set([ONE, TWO]), policy_set([TWO, ONE])) == ""


def test_an_addition_names_only_what_is_new() -> None:
    text = render_delta(policy_set([ONE]), policy_set([ONE, TWO]))
    assert TWO.interface in text
    assert ONE.interface not in text
    assert "delete" not in text


def test_a_changed_address_keeps_the_chains() -> None:
    moved = endpoint(ONE.interface, ONE.mac, "10.65.0.7")
    text = render_delta(policy_set([ONE]), policy_set([moved]))
    assert "delete chain" not in text
    assert "delete element inet tortie bindings4-0" in text
    assert text.index("10.65.0.2") < text.index("10.65.0.7")


def test_another_host_action_changes_the_input_chain_only() -> None:
    accept = policy_set([ONE], endpoint_to_host=EndpointToHost.ACCEPT)
    text = render_delta(policy_set([ONE]), accept)
    assert "flush chain inet tortie to-node" in text
    assert ONE.interface not in text, "nothing else is touched"
    lines = {action: render(policy_set([], endpoint_to_host=action)) for action in EndpointToHost}
    assert lines[EndpointToHost.DROP] != lines[EndpointToHost.ACCEPT]
    assert lines[EndpointToHost.ACCEPT] == lines[EndpointToHost.RETURN]
