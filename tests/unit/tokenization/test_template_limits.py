import time

import pytest

from chairlift.errors import InvalidRequestError
from chairlift.tokenization.chat_template import ChatTemplate
from chairlift.tokenization.template_limits import TemplateLimits

MESSAGES = [{"role": "user", "content": "hi"}]
LIMITS = TemplateLimits(timeout_s=0.2, max_chars=10_000)
DOUBLING = "{% set ns = namespace(x='a') %}{% for i in range(60) %}"


def render(source: str) -> str:
    return ChatTemplate(source).render(
        MESSAGES, add_generation_prompt=True, continue_final_message=False, variables={}, limits=LIMITS
    )


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set tick = 1 %}{% for i in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    ],
)
def test_a_template_without_end_is_stopped(source: str) -> None:
    start_s = time.monotonic()
    with pytest.raises(InvalidRequestError, match="template"):
        render(source)
    assert time.monotonic() - start_s < 5


@pytest.mark.parametrize(
    "source",
    [
        DOUBLING + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        DOUBLING + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
        DOUBLING + "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}",
        "{{ 'a' * 10**12 }}",
        "{{ 10**12 * 'a' }}",
        "{{ [0] * 10**12 }}",
        "{{ 2 ** 1000000000 }}",
        "{{ 'a'.ljust(10**12) }}",
        "{{ 'a'.zfill(10**12) }}",
        "{{ 'a'.center(10**12) }}",
        "{{ 'a\t'.expandtabs(10**12) }}",
        "{{ 'a'|center(1000000000000) }}",
        "{{ 'a'|indent(1000000000000, true) }}",
        "{{ '{:>1000000000000}'.format('a') }}",
        "{{ '{:>{}}'.format('a', 10**12) }}",
        "{{ '%1000000000000d' % 1 }}",
        "{{ '%*d' % (10**12, 1) }}",
        "{{ '%1000000000000d'|format(1) }}",
        "{% set x = 'a' * 9000 %}{{ x.replace('a', x) }}",
        "{% set x = 'a' * 9000 %}{{ x|replace('a', x) }}",
        "{% set x = ['a' * 9000] * 9000 %}{{ x|join }}",
        "{% set x = ['a' * 9000] * 9000 %}{{ ''.join(x) }}",
        "{{ lipsum(n=10000000) }}",
    ],
)
def test_a_template_cannot_fill_the_memory(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="template"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ self.__init__.__globals__ }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{{ messages|map(attribute='__class__.__mro__')|list|first }}{{ raise_exception.__globals__ }}",
        "{{ ''|attr('__class__')|attr('__mro__')|list|first|attr('__subclasses__') }}{{ 1/0 }}",
    ],
)
def test_a_template_does_not_get_out_of_the_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="template"):
        render(source)


def test_what_templates_do_goes_on_as_before() -> None:
    source = (
        "{%- for m in messages -%}{{ loop.index ~ ':' ~ m.role + '=' + m['content']|trim }}{%- endfor -%}"
        "{{ '%s-%s' % ('a', 5) }}{{ 5 % 3 }}{{ '%d'|format(3) }}{{ 'a,b'.replace(',', '-') }}{{ [1, 2]|join(', ') }}"
        "{{ '{:.2f}'.format(1.5) }}{{ 2 ** 8 }}{{ 'ab' * 2 }}{{ missing ~ '!' }}{{ 'x'|indent(2) }}"
    )
    assert render(source) == "1:user=hia-523a-b1, 21.50256abab!x"
