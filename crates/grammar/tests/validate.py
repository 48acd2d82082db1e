#!/usr/bin/env python3
"""Checks random answers with Python's jsonschema, formats included.

    PIANOLA_WALKS=/tmp/walks.jsonl cargo test --release -p pianola-grammar --test all walks::
    pip install 'jsonschema[format]'
    crates/grammar/tests/validate.py /tmp/walks.jsonl
"""

import json
import sys

from jsonschema import Draft202012Validator

lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
wrong = 0
for line in lines:
    formats = Draft202012Validator.FORMAT_CHECKER
    validator = Draft202012Validator(line["schema"], format_checker=formats)
    for error in validator.iter_errors(json.loads(line["text"])):
        wrong += 1
        print(f"{line['name']}: {error.message}: {line['text']}")
print(f"{len(lines)} answers, {wrong} errors")
sys.exit(1 if wrong else 0)
