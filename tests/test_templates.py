"""Chat templates that a user gives: bad ones are refused as such, not as bad models."""

from __future__ import annotations

import pytest

from fpa.engines.templates import check_template
from fpa.errors import UsageError
from fpa.presets import R1_OPEN, R1_PLAIN

GOOD = """
{%- for m in messages %}
    {%- if m.role not in ("user", "system") %}{% continue %}{% endif %}
    {%- generation %}{{ m.role + m.content + (m | tojson(indent=2)) }}{% endgeneration %}
{%- endfor %}
{{- strftime_now("%Y") ~ (tools is defined) ~ bos_token }}
"""
BAD = {
    "": "is empty",
    " \n": "is empty",
    "{{ foo": "is no Jinja: line 1",
    "{% for m in messages %}": "is no Jinja",
    '{{ raise_exception("no\ntools") }}': "refuses a conversation of one question: no tools",
    "{{ messages[3].content }}{{ nothing() }}": "refuses a conversation",
    "Some other text file.": "leaves the question out",
}


@pytest.mark.parametrize("template", [GOOD, R1_OPEN, R1_PLAIN])
def test_good_templates_pass(template: str) -> None:
    check_template(template)


@pytest.mark.parametrize("template", BAD)
def test_bad_templates_are_one_line(template: str) -> None:
    with pytest.raises(UsageError) as raised:
        check_template(template)
    assert BAD[template] in str(raised.value)
    assert "\n" not in str(raised.value)
