"""Kubernetes' label selectors as Calico's, and how its specs are read. Pure.

A field that is not known here is an error: it may be what restricts the policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator

from libtortie.errors import InvalidInput
from libtortie.kube.objects import View
from libtortie.model import selectors
from libtortie.model.field_errors import lines_of, summary
from libtortie.model.policy import LABEL_NAMESPACE, LABEL_ORCHESTRATOR, NAMESPACE_PREFIX
from libtortie.model.selector_text import both, in_namespace, quoted

PODS = f"{LABEL_ORCHESTRATOR} == 'k8s'"
"""Pods, as opposed to networks, hosts and endpoints of other orchestrators."""


class Exact(View):
    """Part of a spec: camelCase names alone, immutable, null = absent, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", populate_by_name=False)


class OneOf(Exact):
    """Part of a spec of which exactly one field is given."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        fields = type(self).model_fields
        if sum(getattr(self, name) is not None for name in fields) != 1:
            *most, last = (field.alias or name for name, field in fields.items())
            one, link = ("either", "or") if len(most) == 1 else ("one of", "and")
            raise ValueError(f"needs {one} {', '.join(most)} {link} {last}")
        return self


def _value(text: str) -> str:
    """A label's value that a selector can speak of."""
    try:
        quoted(text)
    except InvalidInput as error:
        raise ValueError(str(error)) from error
    return text


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]+$")]
LabelValue = Annotated[str, AfterValidator(_value)]


class Requirement(Exact):
    """`matchExpressions[]`."""

    key: Name
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[LabelValue, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Requirement:
        listing = self.operator in ("In", "NotIn")
        if listing is not bool(self.values):
            needs = "needs values" if listing else "has no values"
            raise ValueError(f"operator {self.operator} {needs}")
        return self


class LabelSelector(Exact):
    """A label selector; the empty one selects everything."""

    match_labels: dict[Name, LabelValue] = Field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()

    @model_validator(mode="after")
    def _speakable(self) -> LabelSelector:
        try:
            selectors.parse(self.text(NAMESPACE_PREFIX))
        except InvalidInput as error:
            raise ValueError(str(error)) from error
        return self

    def text(self, prefix: str = "") -> str:
        """The selector of what it selects by labels that are called so; "": everything."""
        return " && ".join(self._parts(prefix))

    def _parts(self, prefix: str) -> Iterator[str]:
        for key, value in sorted(self.match_labels.items()):
            yield f"{prefix}{key} == {quoted(value)}"
        for one in self.match_expressions:
            key = f"{prefix}{one.key}"
            listed = ", ".join(quoted(value) for value in sorted(set(one.values)))
            match one.operator:
                case "In":
                    yield f"{key} in {{ {listed} }}"
                case "NotIn":
                    yield f"{key} not in {{ {listed} }}"
                case "Exists":
                    yield f"has({key})"
                case "DoesNotExist":
                    yield f"!has({key})"


def pods(selector: LabelSelector | None) -> str:
    """The selector of pods with these labels; None: of all pods."""
    return both(PODS, selector.text() if selector else "")


def of_namespaces(selector: LabelSelector) -> str:
    """The selector of what is in these namespaces."""
    return selector.text(NAMESPACE_PREFIX) or f"has({LABEL_NAMESPACE})"


def pods_of(namespaces: LabelSelector | None, selected: LabelSelector | None, own: str) -> str:
    """The selector of pods in these namespaces; None: in the namespace `own`."""
    where = in_namespace(own) if namespaces is None else of_namespaces(namespaces)
    return both(where, pods(selected))


S = TypeVar("S", bound=Exact)


def read_spec(model: type[S], spec: Any) -> S:
    """A spec. Raises `InvalidInput` with the fields' paths."""
    try:
        return model.model_validate(spec)
    except ValidationError as error:
        raise InvalidInput(summary(lines_of(error))) from error


def readable_part(model: type[S], value: Any) -> S | None:
    """A part of a spec that is wrong elsewhere; None: it is wrong here, too."""
    try:
        return model.model_validate(value)
    except ValidationError:
        return None
