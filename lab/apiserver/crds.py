"""Calico's kinds as `conf/crds/` defines them: what an administrator would install.

Of a definition everything counts here that it says: names, scope, status, selectable fields,
columns, schema.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

from lab.apiserver.kind import Kind, Printed

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C reads ten times as fast


def kinds(version: str) -> tuple[Kind, ...]:
    """The kinds of one folder (`v1`, `v3`)."""
    folder = files("conf").joinpath("crds", version)
    names = sorted(one.name for one in folder.iterdir() if one.name.endswith(".yaml"))
    return tuple(kind_of(yaml.load(folder.joinpath(n).read_text(), _LOADER)) for n in names)


def kind_of(definition: dict[str, Any]) -> Kind:
    """The kind that a CustomResourceDefinition defines; of its versions the first."""
    spec = definition["spec"]
    version, names = spec["versions"][0], spec["names"]
    whole = version["schema"]["openAPIV3Schema"]
    status = "status" in version.get("subresources", {})
    own = ("apiVersion", "kind", "metadata")
    schema = {
        **whole,
        "properties": {k: v for k, v in whole["properties"].items() if k not in own},
        "required": [name for name in whole.get("required", ()) if name not in own],
    }
    return Kind(
        spec["group"],
        version["name"],
        names["plural"],
        names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        status=status,
        on_create="drop" if status else "keep",
        short_names=tuple(names.get("shortNames", ())),
        fields=tuple(
            one["jsonPath"].removeprefix(".") for one in version.get("selectableFields", ())
        ),
        only_name=_only_name(whole["properties"].get("metadata", {})),
        schema=schema,
        printed=tuple(
            Printed(
                one["name"], one["jsonPath"].removeprefix("."), one["type"], one.get("priority", 0)
            )
            for one in version.get("additionalPrinterColumns", ())
        ),
    )


def _only_name(metadata: dict[str, Any]) -> str:
    (only,) = metadata.get("properties", {}).get("name", {}).get("enum", ("",))
    return str(only)
