"""kubectl's JSONPath: what each form finds, and what is no template."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libtortie.errors import InvalidInput
from tortiectl.jsonpath import Template

LIST = {
    "kind": "List",
    "items": [
        {
            "metadata": {"name": "a", "labels": {"x.y/z": "1"}},
            "spec": {"order": 1, "nets": ["n1", "n2"], "on": True},
        },
        {"metadata": {"name": "b"}, "spec": {"order": 2.5, "nets": [], "on": False}},
        {"metadata": {"name": "c"}, "spec": {"order": 30, "deep": {"name": "d"}}},
    ],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.kind}", "List"),
        ("{$.kind}", "List"),
        ("{kind}", "List"),
        ("plain {.kind}!", "plain List!"),
        ("{.items[*].metadata.name}", "a b c"),
        ("{.items[0].metadata.name}", "a"),
        ("{.items[-1].metadata.name}", "c"),
        ("{.items[0,2].metadata.name}", "a c"),
        ("{.items[1:].metadata.name}", "b c"),
        ("{.items[:2].metadata.name}", "a b"),
        ("{.items[-1:].metadata.name}", "c"),
        ("{.items[::2].metadata.name}", "a c"),
        ("{.items[9].metadata.name}", ""),
        ("{.nothing.at.all}", ""),
        ("{.items[0].metadata.labels['x.y/z']}", "1"),
        ('{.items[0].metadata.labels["x.y/z"]}', "1"),
        (r"{.items[0].metadata.labels.x\.y/z}", "1"),
        ("{.items[0]['metadata','spec'].name}", "a"),
        ("{.items[0].spec.nets}", '["n1","n2"]'),
        ("{.items[0].spec.on} {.items[1].spec.order}", "true 2.5"),
        ("{..name}", "a b c d"),
        ("{.items[*].spec.*}", '1 ["n1","n2"] true 2.5 [] false 30 {"name":"d"}'),
        ("{.items[?(@.spec.order>1)].metadata.name}", "b c"),
        ("{.items[?(@.spec.order<=2.5)].metadata.name}", "a b"),
        ("{.items[?(@.metadata.name=='b')].spec.order}", "2.5"),
        ('{.items[?(@.metadata.name!="b")].metadata.name}', "a c"),
        ("{.items[?(@.spec.deep)].metadata.name}", "c"),
        ("{.items[?(@.spec.on==true)].metadata.name}", "a"),
        ("{.items[?(@.metadata.name>5)].metadata.name}", ""),
        ('{range .items[*]}{.metadata.name}{"\\n"}{end}', "a\nb\nc\n"),
        ("{range .items[*]}{range .spec.nets[*]}{@},{end}{end}", "n1,n2,"),
        ("{range .items[*]}[{.metadata.name}, {.spec.order}] {end}", "[a, 1] [b, 2.5] [c, 30] "),
        ("{'a}b'}{\"\\t\"}", "a}b\t"),
        ("", ""),
    ],
)
def test_what_a_template_finds(template: str, text: str) -> None:
    assert Template(template).render(LIST) == text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{.a", "{ at character 1 is not closed"),
        ("{.a[}", "[ is not closed"),
        ("{range .a}", "{range} without {end}"),
        ("{end}", "{end} without {range}"),
        ("{.a[x]}", "[x]: want a number"),
        ("{.a[?(@.b==)]}", "jsonpath: "),
        ("{.a[?(@.b==c)]}", "'c' is no @path, number or 'text'"),
        ("{.a[?(@.b==" + "[" * 5000 + "]" * 5000 + ")]}", "is no @path, number or"),
        ("{.a[::0]}", "a stride of 0"),
        ("{'a}", "is not closed"),
        ("{}", ""),
        ("{.a!}", "want a name"),
        ("{range .a}" * 70 + "{end}" * 70, "nested too deeply"),
    ],
)
def test_what_is_no_template(template: str, words: str) -> None:
    if not words:
        assert Template(template).render(LIST) == ""
        return
    with pytest.raises(InvalidInput) as caught:
        Template(template)
    assert words in str(caught.value)


@given(st.text(alphabet="{}[]()?@.*'\"\\ab01:,<=! ", max_size=30))
def test_any_text_is_a_template_or_refused(text: str) -> None:
    try:
        template = Template(text)
    except InvalidInput:
        return
    template.render(LIST)
