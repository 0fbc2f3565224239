"""Bounds on what a chat template may use: time, and the length of what it prints or puts together.

Knows nothing of chats. A template comes with a model, and models come from anywhere; the sandbox keeps it from Python,
and this keeps it from taking a thread or the memory for itself. Each pass of a loop and each call of a macro looks at
the clock; whatever makes a text longer than its parts looks at the length first.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

_WIDENING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "__mod__"})
"""Methods of texts whose result may be as long as a number among their arguments says."""
_MAX_EXPONENT = 256
_WIDE_FORMAT = re.compile(r"[0-9]{7}|%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{")
"""Numbers of many digits, and widths that come from an argument: nothing but an attack formats with them."""
_PRINTED_FACTOR = 4
"""A template may print a text more than once, and print into variables."""


class TemplateLimits(NamedTuple):
    """Seconds that a conversation may take to be printed, and characters that it may become."""

    timeout_s: float = 2.0
    max_chars: int = 2**20


class TemplateLimitError(jinja2.TemplateError):
    """A template was stopped."""


class _Budget(threading.local):
    """What the rendering in this thread may still use; nothing is limited outside of one."""

    deadline_s: float | None = None
    max_chars: int = 0
    printed_chars: int = 0


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates end. Open :meth:`limited` around the rendering of one."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, finalize=self._count_printed)
        self._budget = _Budget()
        filters = cast("dict[str, Any]", self.filters)  # pyright: ignore[reportUnknownMemberType]
        plain_join = filters["join"]

        @jinja2.pass_eval_context
        def join(context: Any, value: Any, d: str = "", attribute: Any = None) -> Any:
            items = list(value)
            self._check_length(sum(len(str(item)) + len(d) for item in items))
            return plain_join(context, items, d, attribute)

        filters["join"] = join
        for name in ("center", "indent", "format", "replace", "wordwrap", "xmlattr"):
            filters[name] = self._guarded_filter(filters[name])
        names = cast("dict[str, Any]", self.globals)  # pyright: ignore[reportUnknownMemberType]
        del names["lipsum"]

    def limited(self, limits: TemplateLimits) -> "_Limited":
        """A context manager within which the limits hold for templates in this thread."""
        return _Limited(self._budget, limits)

    def tick(self) -> str:
        """Called by compiled templates at every pass of a loop.

        Raises:
            TemplateLimitError: the time is over.
        """
        deadline_s = self._budget.deadline_s
        if deadline_s is not None and time.monotonic() > deadline_s:  # noqa: TID251 - a limit on real time
            raise TemplateLimitError("it takes longer than --template-timeout allows")
        return ""

    def concatenate(self, parts: Iterable[Any]) -> str:
        """What ``~`` does, called by compiled templates."""
        texts = [str(part) for part in parts]
        self._check_length(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute ``left operator right``, if that cannot grow out of bounds."""
        if operator == "+" and _is_sized(left) and _is_sized(right):
            self._check_length(len(left) + len(right))
        elif operator == "*":
            for sized, number in ((left, right), (right, left)):
                if _is_sized(sized) and isinstance(number, int):
                    self._check_length(len(sized) * max(number, 0))
        elif operator == "**" and isinstance(right, int | float) and abs(right) > _MAX_EXPONENT:
            raise TemplateLimitError(f"it raises a number to a power above {_MAX_EXPONENT}")
        elif operator == "%" and isinstance(left, str):
            self._check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Call something, if its result cannot grow out of bounds."""
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            self._check_text_method(owner, getattr(obj, "__name__", ""), args)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The ``format`` method of a text in the sandbox, if its result cannot grow out of bounds."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            self._check_format(value.__self__)
        return wrapped

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return cast("nodes.Template", _with_checks(super()._parse(source, name, filename)))

    def _check_text_method(self, text: str, name: str, args: tuple[Any, ...]) -> None:
        if name in _WIDENING:
            for number in args:
                if isinstance(number, int):
                    self._check_length(len(text) * number if name == "expandtabs" else number)
        elif name == "replace" and len(args) > 1 and isinstance(args[1], str):
            self._check_replacement(text, args[0], args[1])
        elif name == "join" and args:
            self._check_length(sum(len(str(item)) + len(text) for item in args[0]) if _is_sized(args[0]) else 0)

    def _check_replacement(self, text: str, old: Any, new: str) -> None:
        number = text.count(old) if isinstance(old, str) else 0
        self._check_length(len(text) + number * len(new))

    def _check_format(self, text: str) -> None:
        if _WIDE_FORMAT.search(text):
            raise TemplateLimitError("it formats a text with a width that is too great, or an argument")

    def _guarded_filter(self, plain: Any) -> Any:
        def check(value: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            for number in (*args, *options.values()):
                if isinstance(number, int) and not isinstance(number, bool) and isinstance(value, str):
                    self._check_length(len(value) + number * (value.count("\n") + 1))
            if isinstance(value, str):
                if plain.__name__ == "do_format":
                    self._check_format(value)
                elif plain.__name__ == "do_replace" and len(args) > 1:
                    self._check_replacement(value, args[0], str(args[1]))

        if getattr(plain, "jinja_pass_arg", None) is not None:

            @jinja2.pass_eval_context
            def with_context(context: Any, value: Any, *args: Any, **options: Any) -> Any:
                check(value, args, options)
                return plain(context, value, *args, **options)

            return with_context

        def without_context(value: Any, *args: Any, **options: Any) -> Any:
            check(value, args, options)
            return plain(value, *args, **options)

        return without_context

    def _count_printed(self, value: Any) -> Any:
        budget = self._budget
        if budget.deadline_s is not None and isinstance(value, str):
            budget.printed_chars += len(value)
            if budget.printed_chars > _PRINTED_FACTOR * budget.max_chars:
                raise TemplateLimitError(f"it prints more than {budget.printed_chars} characters (--max-prompt-chars)")
        return value

    def _check_length(self, length: int) -> None:
        budget = self._budget
        if budget.deadline_s is not None and length > budget.max_chars:
            raise TemplateLimitError(f"it makes something of length {length}; --max-prompt-chars is {budget.max_chars}")


class _Limited:
    def __init__(self, budget: _Budget, limits: TemplateLimits) -> None:
        self._budget, self._limits = budget, limits

    def __enter__(self) -> None:
        self._budget.deadline_s = time.monotonic() + self._limits.timeout_s  # noqa: TID251 - a limit on real time
        self._budget.max_chars = self._limits.max_chars
        self._budget.printed_chars = 0

    def __exit__(self, *_: object) -> None:
        self._budget.deadline_s = None


def _is_sized(value: Any) -> bool:
    return isinstance(value, str | list | tuple)


def _with_checks(node: nodes.Node) -> nodes.Node:
    """Put the checks into a parsed template, where no name that a template sets can hide them."""
    for child in node.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        looping = cast("nodes.For", child)
        looping.body.insert(0, nodes.ExprStmt(_environment_call("tick"), lineno=child.lineno))
    _replace_concatenations(node)
    return node


def _replace_concatenations(node: nodes.Node) -> None:
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            items = cast("list[Any]", value)
            setattr(node, name, [_replaced(item) if isinstance(item, nodes.Node) else item for item in items])
        elif isinstance(value, nodes.Node):
            setattr(node, name, _replaced(value))


def _replaced(node: nodes.Node) -> nodes.Node:
    _replace_concatenations(node)
    if not isinstance(node, nodes.Concat):
        return node
    return _environment_call("concatenate", nodes.List(node.nodes, lineno=node.lineno), lineno=node.lineno)


def _environment_call(name: str, *arguments: nodes.Expr, lineno: int = 1) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=lineno)
    return nodes.Call(function, list(arguments), [], None, None, lineno=lineno)
