"""Profiles in Kubernetes: every namespace and every service account is one. Pure, read-only."""

from __future__ import annotations

from dataclasses import dataclass

from libtortie.datastore.crd_names import Json, Place, converted_uid, metadata_of, require_name
from libtortie.datastore.crd_shapes import Query
from libtortie.datastore.port import Value
from libtortie.errors import InvalidInput
from libtortie.kube.objects import Namespace, ServiceAccount
from libtortie.model.keys import Key, Kind, ResourceKey, Scope
from libtortie.model.resources import API_VERSION, parse_resource

_NAMESPACE, _ACCOUNT = "kns.", "ksa."


@dataclass(frozen=True, slots=True)
class ProfileShape:
    """The `Shape` of Profile: `kns.<namespace>` and `ksa.<namespace>.<service account>`."""

    def place(self, key: Key) -> Place:
        """See `Shape`. `InvalidInput` for a name that no namespace or account makes."""
        assert isinstance(key, ResourceKey)
        if key.name.startswith(_NAMESPACE):
            return require_name(Place(Namespace.api, key.name.removeprefix(_NAMESPACE)))
        namespace, dot, account = key.name.removeprefix(_ACCOUNT).partition(".")
        if not key.name.startswith(_ACCOUNT) or not dot:
            raise InvalidInput(
                f"Profile {key.name}: in Kubernetes profiles are named {_NAMESPACE}<namespace> or "
                f"{_ACCOUNT}<namespace>.<service account>"
            )
        return require_name(Place(ServiceAccount.api, account, namespace))

    def queries(self, scope: Scope) -> tuple[Query, ...]:
        """Namespaces and service accounts, or the one object."""
        if isinstance(scope, ResourceKey):
            place = self.place(scope)
            return (Query(place.api, place.namespace, "", f"metadata.name={place.name}"),)
        return (Query(Namespace.api), Query(ServiceAccount.api))

    def key(self, body: Json) -> Key:
        """See `Shape`: what has a namespace is an account."""
        meta = metadata_of(body)
        name, namespace = str(meta.get("name") or ""), str(meta.get("namespace") or "")
        profile = f"{_ACCOUNT}{namespace}.{name}" if namespace else f"{_NAMESPACE}{name}"
        return ResourceKey(Kind.PROFILE, profile)

    def value(self, key: Key, body: Json) -> Value:
        """See `Shape`: a namespace lets everything in and out, an account has labels alone."""
        assert isinstance(key, ResourceKey)
        meta = metadata_of(body)
        of_account = bool(meta.get("namespace"))
        prefix = "pcsa." if of_account else "pcns."
        labels = {f"{prefix}{name}": text for name, text in (meta.get("labels") or {}).items()}
        labels[f"{prefix}projectcalico.org/name"] = str(meta.get("name"))
        allow = [{"action": "Allow"}]
        rules: Json = {} if of_account else {"ingress": allow, "egress": allow}
        wire = {
            "kind": Kind.PROFILE.value,
            "apiVersion": API_VERSION,
            "metadata": {
                "name": key.name,
                "uid": converted_uid(str(meta.get("uid") or "")),
                "creationTimestamp": meta.get("creationTimestamp"),
            },
            "spec": {**rules, "labelsToApply": dict(sorted(labels.items()))},
        }
        return parse_resource(Kind.PROFILE, wire)
