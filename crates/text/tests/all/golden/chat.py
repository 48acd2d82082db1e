#!/usr/bin/env python3
"""Renders conversations with Python's Jinja, set up as Hugging Face does, into chat.json.

    python3 chat.py "$PIANOLA_TEST_MODELS" > chat.json
"""

import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1709210096  # 2024-02-29 12:34:56 UTC

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Says what the weather is <now> & \"here\", in °C",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "a city"},
                "days": {"type": "integer", "default": 1, "minimum": 0.5},
                "unit": {"enum": ["c", "f"], "nullable": True, "items": []},
            },
            "required": ["city"],
        },
    },
}

USER = {"role": "user", "content": "  What's up, dœr?\n"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "type": "function",
            "id": "call00001",
            "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2}},
        }
    ],
}

CONVERSATIONS = [
    {"messages": [USER]},
    {"messages": [USER], "add_generation_prompt": False},
    {"messages": [{"role": "system", "content": "Be brief. "}, USER]},
    {
        "messages": [
            USER,
            {"role": "assistant", "content": "Not much. "},
            {"role": "user", "content": "And\n\nnow?"},
        ]
    },
    {
        "messages": [
            USER,
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nNot much."},
            {"role": "user", "content": "Go on"},
            {"role": "assistant", "content": "<think>\nhm, 2\n</think>\n\nOn."},
        ],
        "add_generation_prompt": False,
    },
    {"messages": [USER], "tools": [WEATHER]},
    {
        "messages": [
            {"role": "system", "content": "Use tools."},
            USER,
            CALL,
            {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"c\": 9.5}"},
        ],
        "tools": [WEATHER],
    },
    {"messages": [{"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "text", "text": "b"}]}]},
    {"messages": [{"role": "assistant", "content": "first"}]},
    {"messages": [USER, USER]},
    {"messages": [USER], "extra": {"enable_thinking": False}},
    {"messages": [USER], "extra": {"date_string": "1 Jan 2025"}},
]

# Small templates for single features.
FEATURES = {
    "printing": "{{ none }} {{ true }} {{ 1.0 }} {{ 3 }} {{ [1, 'a', none] }} {{ {'k': \"it's\"} }} {{ nothing }}|",
    "json": "{{ tools | tojson }}\n{{ tools | tojson(indent=2) }}\n{{ {'b': 1, 'a': '<&>\\n'} | tojson(sort_keys=true) }}"
    "{{ 'é\\u2028' | tojson }}{{ 'é🙂' | tojson(ensure_ascii=true) }}{{ [] | tojson(indent=4) }}{{ {'a': [1, {}]} | tojson(separators=(',', ':')) }}",
    "blocks": "a\n  {% if true %}\n  b\n  {% endif %}\n\n{%- for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}\n{{ i }}{{ loop.index0 }}{{ loop.last }}{% endfor %}\nend\n\n",
    "strings": "{{ ' x y '.strip() }}{{ 'a,b'.split(',')[-1] }}{{ 'abc'.upper().startswith('AB') }}{{ 'a-b'.replace('-', '+') }}"
    "{{ 'x\\n'.rstrip('\\n') }}{{ 'abc'[::-1] }}{{ 'abc'[1:] }}{{ 'title case'.title() }}{{ 'b' in 'abc' }}{{ '-' * 3 }}{{ 'a' ~ 1 }}",
    "namespaces": "{% set ns = namespace(found=false, items=[]) %}{% for m in messages %}{% set ns.found = true %}{% set ns.items = ns.items + [m.role] %}{% endfor %}{{ ns.found }} {{ ns.items | join(',') }}",
    "dictionaries": "{% for k, v in {'a': 1, 'b': [2]}.items() %}{{ k }}={{ v }};{% endfor %}{{ {'a': 1}.get('b', 'none') }}{{ {'a': 1}.keys() | list }}{% for k, v in {'z': 1, 'y': 2} | dictsort %}{{ k }}{% endfor %}",
    "macros": "{% macro shout(text, mark='!') %}{{ text | upper }}{{ mark }}{% endmacro %}{{ shout('hey') }}{{ shout('hey', mark='?') }}",
    "tests": "{{ tools is none }} {{ tools is defined }} {{ documents is none }} {{ nothing is defined }} {{ 'a' is string }} {{ [1] is iterable }} {{ {} is mapping }} {{ [1] is sequence }} {{ 1 is number }} {{ true is boolean }} {{ none is not none }} {{ 3 is odd }}",
    "filters": "{{ messages | map(attribute='role') | list | first }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ ' a ' | trim }} {{ 'a\\nb' | indent(2) }} {{ [3, 1] | sort | join(' ') }} {{ 'x' | default('y') }} {{ nothing | default('z') }} {{ [1, 2] | last }} {{ '5' | int + 1 }} {{ messages | rejectattr('role', 'eq', 'user') | list | length }} {{ 'A' | lower }} {{ 'a b' | capitalize }} {{ [1, 1] | unique | list | length }}",
    "time": "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%-d %B %Y, %A %H:%M') }}",
    "raising": "{% if messages[0].role == 'user' %}{{ raise_exception('No \"users\" here!') }}{% endif %}",
    "generation": "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content | trim }}{% endgeneration %}\n{%- generation -%} x {%- endgeneration %}{% endfor %}",
    "conditions": "{{ 'a' if messages | length > 1 else 'b' }}{{ '' or 'c' }}{{ (1 == 1) != (2 == 2) }}{{ 5 // 2 }}{{ 5 % 3 }}{{ 2 ** 3 }}{{ not false and true }}{{ 7 / 2 }}",
    "tokens": "{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}",
    "order": "{{ tools[0].function.parameters.properties.keys() | list }}{{ tools[0] }}",
    "captures": "{% set text %}a{{ 1 }}{% endset %}{{ text }}{% set loud | upper %}b{% endset %}{{ loud }}{% filter upper | replace('C', 'd') %}xc{% endfilter %}",
    "calls": "{% macro box(title) %}[{{ title }}:{{ caller() }}]{% endmacro %}{% call box('t') %}in{% endcall %}{% macro each(list) %}{% for x in list %}{{ caller(x) }},{% endfor %}{% endmacro %}{% call(x) each([1, 2]) %}<{{ x }}>{% endcall %}",
    "recursion": "{% for x in [1, [2, [3]], 4] recursive %}{% if x is iterable %}({{ loop(x) }}){{ loop.depth }}{% else %}{{ x }}{% endif %}{% endfor %}{% macro down(n) %}{{ n }}{% if n > 0 %}{{ down(n - 1) }}{% endif %}{% endmacro %}{{ down(3) }}",
    "loops": "{% for a, (b, c) in [(1, (2, 3)), (4, (5, 6))] %}{{ a }}{{ b }}{{ c }}{{ loop.index }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.length }}{{ loop.cycle('x', 'y') }}{% endfor %}{% for x in [] %}{% else %}none{% endfor %}"
    "{% for x in [1, 2, 3, 4] if x is even %}{{ x }}{{ loop.length }}{{ loop.previtem }}|{{ loop.nextitem }};{% endfor %}{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}{% for k in {'a': 1} %}{{ k }}{% endfor %}{% for c in 'hé' %}{{ c }}.{% endfor %}",
    "scopes": "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 7 %}{% endif %}{{ x }}{% with y = 3, z = x %}{{ y }}{{ z }}{% set x = 9 %}{% endwith %}{{ x }}{{ y is defined }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}",
    "slices": "{{ [1, 2, 3, 4][1:3] }}{{ [1, 2, 3][::-1] }}{{ [1, 2, 3][-2:] }}{{ [1, 2, 3, 4, 5][::2] }}{{ [1, 2, 3][5:] }}{{ [1, 2, 3][-9:2] }}{{ [1, 2, 3][3:0:-1] }}{{ 'héllo'[1:4] }}{{ 'abc'[-1] }}{{ [1, 2][-1] }}{{ [1][7] is defined }}{{ 'abc'[:none] }}",
    "whitespace": "  {{- 1 -}}  x\n  {%- if true -%}\n y \n{%- endif %}\n\n z {#- c -#} w\n  {# line #}\n  {%+ if true %}k{% endif +%}\n  {% raw %} {{ no }} {% if %}{% endraw %}\n\tend  {{ 2 }}\n",
    "numbers": "{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 // -2 }} {{ 2 ** -1 }} {{ 1e3 }} {{ 1_000 }} {{ 7.5 // 2 }} {{ -2 ** 2 }} {{ 1 + 2 * 3 - 4 / 2 }} {{ 3 | float }} {{ '3.7' | float }} {{ 3.7 | int }} {{ 'x' | int(9) }} {{ -3 | abs }} {{ 2.5 | round }} {{ 3.14159 | round(2) }} {{ 1 == 1.0 }} {{ true + 1 }} {{ 10 / 5 }}",
    "comparisons": "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1} }} {{ 'a' not in 'bc' }} {{ 1 in [1] }} {{ 'k' in {'k': 0} }} {{ none == none }} {{ not 1 == 2 }} {{ 1 != 2 and 2 != 1 or false }} {{ (1 if false) is defined }} {{ 'x' in nothing }} {{ [1, 2] < [1, 3] }}",
    "methods": "{{ 'a b  c'.split() }}{{ 'a-b-c'.split('-', 1) }}{{ 'a-b-c'.rsplit('-', 1) }}{{ 'a\\nb'.splitlines() }}{{ 'xax'.strip('x') }}{{ 'xax'.lstrip('x') }}{{ 'Ab'.lower() }}{{ 'abc'.find('c') }}{{ 'abc'.find('z') }}{{ 'aXbX'.rfind('X') }}{{ 'abab'.count('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ '-'.join(['a', 'b']) }}"
    "{{ 'hELLO wORLD'.capitalize() }}{{ \"they're bill's\".title() }}{{ 'a'.isalpha() }}{{ '1'.isdigit() }}{{ ' '.isspace() }}{{ 'ab'.replace('', '-') }}{{ 'aaa'.replace('a', 'b', 2) }}{{ '{} {1} {x}'.format(1, 2, x=3) if false }}{{ '{}-{x}'.format(1, x='y') }}{{ 'abc'.removeprefix('a') }}{{ 'a=b=c'.partition('=') | list }}{{ '7'.zfill(3) }}{{ 'ab'.ljust(4) }}|{{ 'ab'.center(6) }}|{{ {'a': 1}.values() | list }}{{ [1, 2, 1].count(1) }}",
    "more filters": "{{ [1, 2, 3] | reverse | list }}{{ 'abc' | reverse }}{{ {'b': 1, 'a': 2} | items | list | length }}{{ [3, 1, 2] | max }}{{ [3, 1] | min }}{{ [1, 2] | sum }}{{ ['b', 'A', 'c'] | sort }}{{ ['b', 'A'] | sort(reverse=true) }}{{ [{'n': 2}, {'n': 1}] | sort(attribute='n') | map(attribute='n') | list }}{{ ['a', 'b'] | map('upper') | join }}"
    "{{ [1, 0, 2] | select | list }}{{ [1, 2, 3] | reject('odd') | list }}{{ [1, 2, 3] | batch(2) | list }}{{ 'a b c' | wordcount }}{{ '%s-%d' | format('x', 3) }}{{ '' | default('d', true) }}{{ 'a\\n\\nb' | indent(2, true) }}|{{ 'x' | center(5) }}|{{ [1, 'a'] | string }}{{ '<&>' | e }}{{ ['a', 'A', 'b'] | unique | join(',') }}{{ [[1, 2], [3]] | map('length') | list }}{{ [{'a': {'b': 5}}] | map(attribute='a.b') | first }}{{ 'abc' | first }}{{ 'abc' | last }}{{ ' x ' | trim | length }}{{ 5 | string | length }}",
    "more tests": "{{ 4 is divisibleby 2 }} {{ 4 is divisibleby(3) }} {{ 1 is sameas 1 }} {{ 'A' is upper }} {{ 'a' is lower }} {{ 3 is in [1, 3] }} {{ 3 is gt 2 }} {{ 3 is not eq 3 }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is true }} {{ range is callable }} {{ nothing is undefined }} {{ 2 is even and 3 is odd }} {{ {} is sequence }} {{ 'a' is mapping }}",
    "printing more": "{{ [true, none, 1.5, 'a\\'b', \"c\", [], {}] }} {{ 'a' 'b' }} {{ {1: 2, 'x': [1]} }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ [1, 2] ~ 'x' }} {{ 'tab\\tnl\\n' | list }}",
    "tuples": "{{ (1, 2) }}{{ (1,) }}{{ () }}{{ 1, 2 }}{{ {'k': 1}.items() | list }}{{ {'k': 1} | items | list }}{{ {'b': 1, 'a': 2} | dictsort }}{{ (1, 2) == [1, 2] }}{{ (1, 2) + (3,) }}{{ (1, 2) * 2 }}{{ (1, 2, 3)[1:] }}{{ 'a-b'.partition('-') }}{{ (1, 2) | list }}{{ (3, 1) | sort }}{{ (1, 2) | tojson }}{{ {(1, 2): 3}[(1, 2)] }}{{ [(1, 2)] | sum(start=()) }}",
    "falsy sequences": "{{ none | map('upper') | list }}{{ 0 | select | list }}{{ false | selectattr('a') | list }}{{ none | rejectattr('a') | list }}{{ 0.0 | reject('odd') | list }}{{ none | map(attribute='a') | list }}",
    "percent": "{{ '%s' % [1, 2] }} {{ '%s %s' % (1, 2) }} {{ '%05d|%+d|% d|%-5d|%x|%5s|%.2s|%05s' % (-3, 4, 5, 6, -255, 'a', 'abc', 'b') }} {{ '%d' % 9007199254740993 }} {{ '%d' % 3.9 }} {{ '%.2f' % 2.675 }} {{ '%08.3f' % -3.14159 }} {{ '%.3d' % 5 }} {{ 'a' % [] }} {{ 'a' % {} }} {{ 5 | format }} {{ '100%%' % () }}",
    "rounding": "{{ 3 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 15 | round(-1) }} {{ 25.0 | round(-1) }} {{ 1.21 | round(1, 'ceil') }} {{ true | round }} {{ 1.5 | round(400) }} {{ 5.5 % 0.1 }} {{ -7.5 // 2 }} {{ 0.0 <= -0.0 }} {{ '1.9' | int }} {{ 'nan' | int }}",
    "order of equals": "{{ [{'a': 1, 'b': 1}, {'a': 1, 'b': 2}, {'a': 0, 'b': 3}] | sort(attribute='a', reverse=true) }} {{ ['b', 'A', 'a'] | min }} {{ ['b', 'A', 'B'] | max }} {{ [{'a': 2}, {'a': 1}] | min(attribute='a') }}",
    "else of loops": "{% for x in [] %}{% else %}{% set y = 1 %}{{ y }}{% endfor %}{{ y is defined }}{% for x in [1, 2] %}{% continue %}{% else %}E{% endfor %}{% for x in [1, 2] %}{% break %}{% else %}F{% endfor %}",
    "mappings": "{{ dict([('a', 1), ('b', 2)], c=3) }}{{ dict({'a': 1}, a=2) }}{{ namespace([('a', 1)]).a }}{{ namespace({'a': 1}, b=2).b }}",
    "absent values": "{{ [nothing] }} {{ none[0] is defined }} {{ (5)[0] is defined }} {{ '' | first is defined }} {{ ['\\x1b\\x00\\x7f'] }}",
    "positions": "{{ 'abcb'.index('b') }}{{ 'abcb'.rindex('b') }}{{ 'a' % nothing }}",
    "words": "{{ \"it's a-b c_d\" | wordcount }} {{ \"it's a-b (c\" | title }} {{ \"it's\".title() }} {{ ['a'] is lower }} {{ [1] is lower }} {{ '-5'.zfill(4) }} {{ 'ab'.center(5) }}| {{ 'abc'.center(6) }}|",
}


class Generation(jinja2.ext.Extension):
    """Transformers' own: the block's content is text like the rest."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(format):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(format)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def render(source, conversation, bos, eos):
    values = {"tools": None, "documents": None, "add_generation_prompt": True, "bos_token": bos, "eos_token": eos}
    values.update({k: v for k, v in conversation.items() if k != "extra"})
    values.update(conversation.get("extra", {}))
    try:
        return {"text": environment().from_string(source).render(**values)}
    except jinja2.exceptions.TemplateError as error:
        return {"refused": str(error)}


def token(config, name):
    value = config.get(name) or ""
    return value if isinstance(value, str) else value["content"]


def main():
    models = pathlib.Path(sys.argv[1]) / "tokenizers"
    cases = []
    for name in ["gemma3", "qwen2_5", "qwen3", "llama3", "mistral_nemo"]:
        config = json.loads((models / name / "tokenizer_config.json").read_text())
        for conversation in CONVERSATIONS:
            # Where a template knows strings only, parts are joined before it sees them.
            if isinstance(conversation["messages"][0]["content"], list) and name != "gemma3":
                continue
            ends = token(config, "bos_token"), token(config, "eos_token")
            rendered = render(config["chat_template"], conversation, *ends)
            cases.append({"model": name, "conversation": conversation, **rendered})
    for name, source in FEATURES.items():
        conversation = {"messages": [USER, CALL], "tools": None if name == "tests" else [WEATHER]}
        rendered = render(source, conversation, "<s>", "</s>")
        cases.append({"name": name, "template": source, "conversation": conversation, **rendered})
    json.dump(cases, sys.stdout, ensure_ascii=False, indent=1)
    print()


main()
