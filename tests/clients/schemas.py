#!/usr/bin/env python3
"""Two hundred answers over twenty JSON schemas, thirty-two at once: every one that was not cut by its length is valid.

usage: schemas.py BASE_URL [COUNT]   (http://127.0.0.1:PORT, serving SmolLM2, best with --speculate)
"""
import concurrent.futures
import json
import sys
import urllib.error
import urllib.request

import jsonschema

BASE = sys.argv[1].rstrip("/")
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 200
TEXT = {"type": "string", "maxLength": 16}


def thing(properties, **more):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False, **more}


SCHEMAS = [
    thing({"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 130}}),
    thing({"colour": {"enum": ["red", "green", "blue"]}, "wheels": {"const": 4}}),
    thing({"price": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 100}}),
    thing({"code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}}),
    thing({"day": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"}}),
    thing({"tags": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3}}),
    thing({"grid": {"type": "array", "minItems": 2, "maxItems": 2, "items": {
        "type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer", "minimum": -9, "maximum": 9}}}}),
    thing({"value": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}, {"enum": ["many"]}]}}),
    thing({"root": {"$ref": "#/$defs/leaf"}}, **{"$defs": {"leaf": thing({"label": TEXT})}}),
    thing({"tree": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": thing({
        "label": {"type": "string", "maxLength": 6},
        "children": {"type": "array", "maxItems": 1, "items": thing({"label": {"type": "string", "maxLength": 6}})}})}}),
    thing({"ok": {"type": "boolean"}, "why": {"type": ["string", "null"], "maxLength": 20}}),
    {"type": "array", "minItems": 1, "maxItems": 3, "items": thing({"x": {"type": "integer", "minimum": 0, "maximum": 99}})},
    thing({"point": {"type": "array", "prefixItems": [{"type": "integer", "maximum": 9, "minimum": 0}, {"type": "boolean"}],
                     "items": False, "minItems": 2}}),
    {"type": "object", "properties": {"first": TEXT, "last": TEXT}, "required": ["first"], "additionalProperties": False},
    {"enum": ["yes", "no", "perhaps"]},
    {"type": "string", "maxLength": 24},
    thing({"nested": thing({"deeper": thing({"deepest": {"type": "integer", "minimum": 1, "maximum": 3}})})}),
    {"anyOf": [thing({"kind": {"const": "circle"}, "r": {"type": "integer", "minimum": 1, "maximum": 9}}),
               thing({"kind": {"const": "square"}, "side": {"type": "integer", "minimum": 1, "maximum": 9}})]},
    thing({"items": {"type": "array", "maxItems": 2, "items": thing({"name": TEXT, "count": {
        "type": "integer", "minimum": 1, "maximum": 20}})}}),
    thing({"even": {"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 50}, "note": TEXT}),
]


def generate(index):
    schema = SCHEMAS[index % len(SCHEMAS)]
    body = {"messages": [{"role": "user", "content": f"Write an example as JSON. Number {index}."}], "max_tokens": 300,
            "temperature": 1.0 if index % 2 else 0.2, "seed": index,
            "response_format": {"type": "json_schema", "json_schema": {"name": "example", "schema": schema}}}
    request = urllib.request.Request(f"{BASE}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        choice = json.load(urllib.request.urlopen(request, timeout=600))["choices"][0]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"schema {index % len(SCHEMAS)}: {error.read().decode()}") from None
    if choice["finish_reason"] == "length":
        return "length"
    jsonschema.validate(json.loads(choice["message"]["content"]), schema, format_checker=jsonschema.FormatChecker())
    return "valid"


with concurrent.futures.ThreadPoolExecutor(32) as pool:
    results = list(pool.map(generate, range(COUNT)))
cut = results.count("length")
print(f"{COUNT} answers over {len(SCHEMAS)} schemas: {results.count('valid')} valid, {cut} cut by length")
assert cut <= 0.05 * COUNT, "too many were cut"
