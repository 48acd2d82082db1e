#!/usr/bin/env python3
"""Renders and tokenises conversations with tools with transformers, into tools.json.

    python3 tools.py "$PIANOLA_TEST_MODELS" > tools.json

Needs transformers and jinja2. strftime_now of a template is fixed to the time of chat.py.
"""

import datetime
import json
import pathlib
import sys

import transformers
from transformers.utils import chat_template_utils

NOW = 1709210096  # 2024-02-29 12:34:56 UTC


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW, tz or datetime.timezone.utc)


chat_template_utils.datetime = Clock


def tool(name, description, required, **properties):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool(
        "get_weather",
        "Current weather, in °C",
        ["city"],
        city={"type": "string", "description": "a city"},
        days={"type": "integer", "minimum": 1},
    ),
    tool("add", "Adds two numbers", ["a", "b"], a={"type": "number"}, b={"type": "number"}),
]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is the weather in Köln, and 2 + 3?"}


def calling(*calls):
    entry = lambda id, name, arguments: {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [entry(*call) for call in calls]}


def result(id, name, content):
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content}


WEATHER = [
    calling(("a1b2c3d4e", "get_weather", {"city": "Köln", "days": 2})),
    result("a1b2c3d4e", "get_weather", '{"degrees": 18, "sky": "grau"}'),
]
SUM = [calling(("f5g6h7i8j", "add", {"a": 2, "b": 3.5})), result("f5g6h7i8j", "add", "5.5")]
BOTH = [
    calling(("a1b2c3d4e", "get_weather", {"city": "Köln"}), ("f5g6h7i8j", "add", {"a": 2, "b": 3})),
    result("a1b2c3d4e", "get_weather", "18"),
    result("f5g6h7i8j", "add", "5"),
]
ANSWER = {"role": "assistant", "content": "18 °C, and 5."}
NEXT = {"role": "user", "content": "Thanks. And tomorrow?"}

CONVERSATIONS = {
    "asked": [SYSTEM, USER],
    "called": [USER, *WEATHER],
    "called again": [USER, *WEATHER, *SUM],
    "parallel": [USER, *BOTH],
    "answered": [SYSTEM, USER, *WEATHER, ANSWER, NEXT],
}
# What these templates refuse, and adapt changes.
REFUSED = {("llama3_2", "parallel")}


def main():
    models = pathlib.Path(sys.argv[1]) / "tokenizers"
    cases = []
    for model in ["qwen2_5", "qwen3", "llama3_2", "mistral_nemo"]:
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(models / model)
        for name, messages in CONVERSATIONS.items():
            if (model, name) in REFUSED:
                continue
            ids = tokenizer.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, return_dict=False)
            cases.append({"model": model, "name": name, "messages": messages, "ids": ids})
    lines = (json.dumps(case, ensure_ascii=False) for case in cases)
    print('{"tools": ' + json.dumps(TOOLS, ensure_ascii=False) + ',\n"cases": [\n' + ",\n".join(lines) + "\n]}")


main()
