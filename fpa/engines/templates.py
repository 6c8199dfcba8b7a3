"""Chat templates that a user gives: tried out here, where what is wrong with one can be said."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any, NoReturn

from jinja2.exceptions import TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fpa.errors import UsageError

PROBE = "What is asked."
GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")  # marks that only training reads


def check_template(template: str) -> None:
    """Try a Jinja chat template on a conversation of one question.

    Raises:
        UsageError: it is empty, no Jinja, refuses the conversation, or leaves the question out.
    """
    if not template.strip():
        raise UsageError("the chat template is empty: give a Jinja file, or leave --chat-template out")

    def raise_exception(message: str) -> NoReturn:
        raise ValueError(message)

    def tojson(value: Any, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, **options)

    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    jinja.globals["raise_exception"] = raise_exception
    jinja.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    jinja.filters["tojson"] = tojson
    try:
        text = jinja.from_string(GENERATION.sub("", template)).render(
            messages=[{"role": "user", "content": PROBE}],
            bos_token="",
            eos_token="",
            add_generation_prompt=True,
        )
    except TemplateSyntaxError as error:
        raise UsageError(f"the chat template is no Jinja: line {error.lineno}: {error.message}") from error
    except Exception as error:  # templates raise what they like
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"the chat template refuses a conversation of one question: {said}") from error
    if PROBE not in text:
        raise UsageError("the chat template leaves the question out: is it the right file?")
