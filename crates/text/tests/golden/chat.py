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
