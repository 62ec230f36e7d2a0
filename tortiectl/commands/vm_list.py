"""`tortiectl vm list` and `tortiectl vm show`."""

from __future__ import annotations

from pathlib import Path

import click

from ipam.vm_handles import VMHandle, read_vm_handles
from libtortie.errors import InvalidInput, TortieError, Unauthorized, first_line
from libtortie.kube.migrations import Migration
from libtortie.model.keys import Kind, Resources
from libtortie.model.resources import Resource, WorkloadEndpoint
from libtortie.past_migrations import migrations
from libtortie.wording import visible
from tortiectl.annals import all_told
from tortiectl.kubevirt import overview as views
from tortiectl.kubevirt.access import Access, default_namespace, open_api
from tortiectl.kubevirt.objects import VMI
from tortiectl.kubevirt.options import namespace_option, output_option
from tortiectl.kubevirt.overview import Overview
from tortiectl.kubevirt.reading import Gap, absent, get_vmi, read_list, split_id
from tortiectl.options import config_option, not_empty
from tortiectl.output import readable_json


@click.command("list")
@config_option
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="Of all namespaces.")
@output_option("text", "json")
@click.pass_context
def list_vms(
    ctx: click.Context, *, config: str, namespace: str, all_namespaces: bool, output: str
) -> None:
    """Show the VMs that have an instance: node, addresses, migration, IPAM handle."""
    if namespace and all_namespaces:
        raise click.UsageError("either -n or -A", ctx)
    access = open_api(ctx, config)
    place = "" if all_namespaces else default_namespace(access, namespace)
    listed = read_list(access.objects, VMI, place)
    if listed.gap is Gap.NOT_SERVED:
        raise absent(access.objects)
    if listed.gap is Gap.FORBIDDEN:
        raise Unauthorized(listed.reason)
    found = _overviews(access, list(listed.objects), place)
    if output == "json":
        click.echo(readable_json([views.document(one, ()) for one in found], sort_keys=True))
    else:
        click.echo(visible(views.table(found), keep="\n"))
    for one in listed.unreadable:
        click.echo(visible(f"{one.kind} {one.id}: {one.reason}"), err=True)
    if listed.unreadable:
        ctx.exit(1)


@click.command("show")
@click.argument("vm")
@config_option
@namespace_option
@click.option(
    "--log", "logs", multiple=True, metavar="FILE", callback=not_empty,
    help="An agent's log, for who else ever had its addresses; may be repeated.",
)  # fmt: skip
@output_option("text", "json")
@click.pass_context
def show_vm(
    ctx: click.Context,
    *,
    vm: str,
    config: str,
    namespace: str,
    logs: tuple[str, ...],
    output: str,
) -> None:
    """Show one VM: addresses, handle, owners, node, migration, endpoint, policies, and, by the
    history and agents' logs, its migrations and who else ever had its addresses."""
    access = open_api(ctx, config)
    place, name = split_id(vm, default_namespace(access, namespace))
    vmi = get_vmi(access.objects, name, place)
    (one,) = _overviews(access, [vmi], place)
    audit = [line for path in logs for line in views.audit_of(_text(path), one.addresses)]
    facts = all_told(lambda: access.connection.store)
    audit += views.audit_of_history(facts, (place, name), one.addresses)
    past = migrations(fact for fact in facts if (fact.namespace, fact.vm) == (place, name))
    if output == "json":
        click.echo(readable_json(views.document(one, sorted(audit), past), sort_keys=True))
    else:
        click.echo("\n".join(visible(line) for line in views.lines(one, sorted(audit), past)))


def _overviews(access: Access, vmis: list[VMI], namespace: str) -> list[Overview]:
    migrations = read_list(access.objects, Migration, namespace).objects
    handles, endpoints, policies = _network(access)
    by_vm = views.by_vm(handles)
    return [
        views.overview(
            vmi, by_vm,
            [one for one in migrations if one.metadata.namespace == vmi.metadata.namespace],
            endpoints, policies,
        )
        for vmi in sorted(vmis, key=lambda vmi: vmi.id)
    ]  # fmt: skip


def _network(
    access: Access,
) -> tuple[tuple[VMHandle, ...], list[WorkloadEndpoint], list[Resource]]:
    """What the datastore knows; without it the rest is shown, and the reason on standard error."""
    store = access.connection
    try:
        handles, broken = read_vm_handles(store.store)
        kinds = (Kind.WORKLOAD_ENDPOINT, Kind.GLOBAL_NETWORK_POLICY, Kind.NETWORK_POLICY)
        lists = [store.store.list(Resources(kind)) for kind in kinds]
    except TortieError as error:
        click.echo(visible(f"addresses and policies: {first_line(error)}"), err=True)
        return (), [], []
    for text in (*broken, *(text for one in lists for text in one.malformed)):
        click.echo(visible(f"cannot be read: {text}"), err=True)
    values = [[record.value for record in one.records] for one in lists]
    endpoints = [one for one in values[0] if isinstance(one, WorkloadEndpoint)]
    policies = [one for each in values[1:] for one in each if isinstance(one, Resource)]
    return handles, endpoints, policies


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
