"""`PromptTemplate`: a prompt made of a line's columns with Jinja2, strictly: a column that is not there is an error."""

from collections.abc import Mapping

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.errors import InputError


class PromptTemplate:
    """A compiled template; the same columns always give the same text."""

    def __init__(self, text: str) -> None:
        """Compile a template.

        Raises:
            InputError: not a Jinja2 template.
        """
        environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
        del environment.filters["random"]
        self.text = text
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(f"the template is not valid Jinja2, line {error.lineno}: {error.message}") from error

    def __reduce__(self) -> tuple[type["PromptTemplate"], tuple[str]]:
        return PromptTemplate, (self.text,)

    def render(self, columns: Mapping[str, object]) -> str:
        """The text for one line's columns.

        Raises:
            InputError: a column that the line lacks, or an expression that fails; the message lists the columns.
        """
        try:
            return self._template.render(columns)
        except jinja2.UndefinedError as error:
            names = ", ".join(columns) or "none"
            raise InputError(f"the template needs what the line does not have ({error.message}); its columns: {names}") from error
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise InputError(f"the template failed: {error}") from error
