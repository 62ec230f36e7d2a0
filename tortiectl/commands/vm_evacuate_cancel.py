"""`tortiectl vm evacuate-cancel`."""

from __future__ import annotations

import click

from libtortie.errors import Conflict, InvalidInput, NotFound
from libtortie.kube.migrations import Migration
from libtortie.kube.port import PatchType
from tortiectl.kubevirt.access import Access, default_namespace, open_api
from tortiectl.kubevirt.objects import VMI, Node
from tortiectl.kubevirt.options import namespace_option
from tortiectl.kubevirt.reading import decode, get_vmi, read_list, split_id
from tortiectl.kubevirt.settings import DRAIN_TAINT
from tortiectl.options import config_option

_FIELD = "/status/evacuationNodeName"


@click.command("evacuate-cancel")
@click.argument("vm")
@config_option
@namespace_option
@click.pass_context
def evacuate_cancel(ctx: click.Context, *, vm: str, config: str, namespace: str) -> None:
    """Clear a VM's leftover mark, by which KubeVirt migrates it again and again.

    Refused while the node has the drain's taint: it would be marked anew. A migration that runs
    goes on; `vm migrate --cancel` ends it.
    """
    access = open_api(ctx, config)
    place, name = split_id(vm, default_namespace(access, namespace))
    vmi = get_vmi(access.objects, name, place)
    mark = vmi.status.evacuation_node_name
    if not mark:
        click.echo(f"{vmi.id} is not marked: nothing to cancel")
        return
    _require_undrained(access, mark)
    _clear(access, vmi, mark)
    click.echo(f"{vmi.id}: evacuation from {mark} cancelled")
    live = [
        one.metadata.name
        for one in read_list(access.objects, Migration, place).objects
        if one.spec.vmi_name == name and not one.final
    ]
    if live:
        click.echo(f"still running: {', '.join(live)}; end it with `vm migrate {vmi.id} --cancel`")


def _require_undrained(access: Access, name: str) -> None:
    """A node that is gone is drained by nobody."""
    try:
        node = decode(Node, access.objects.get(Node.api, name))
    except NotFound:
        return
    if any(taint.key == DRAIN_TAINT for taint in node.spec.taints):
        raise InvalidInput(f"node {name} has the taint {DRAIN_TAINT}: take it away first")
    if node.spec.unschedulable:
        click.echo(
            f"note: {name} is cordoned; if a drain is running it marks the VM anew", err=True
        )


def _clear(access: Access, vmi: VMI, mark: str) -> None:
    """By KubeVirt's own subresource where it is served, else by a patch that names the mark."""
    meta = vmi.metadata
    path = (
        f"/apis/subresources.kubevirt.io/v1/namespaces/{meta.namespace}/"
        f"virtualmachineinstances/{meta.name}/evacuate/cancel"
    )
    try:
        access.client.raw("PUT", path, {})
        return
    except NotFound:
        pass  # an older KubeVirt
    body = [
        {"op": "test", "path": _FIELD, "value": mark},
        {"op": "remove", "path": _FIELD},
    ]
    try:
        access.client.patch(
            VMI, meta.name, meta.namespace, body, patch_type=PatchType.JSON, subresource="status"
        )
    except NotFound:
        access.client.patch(VMI, meta.name, meta.namespace, body, patch_type=PatchType.JSON)
    except InvalidInput as error:
        raise Conflict(f"{vmi.id}: the mark has changed meanwhile: look again ({error})") from error
