#!/usr/bin/env python3
"""Drives a server with OpenAI's own package.

usage: openai_client.py BASE_URL   (http://127.0.0.1:PORT, serving SmolLM2)
"""
import json
import math
import sys
import threading
import urllib.request

import jsonschema
import openai

BASE = sys.argv[1].rstrip("/")
client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0)
MODEL = client.models.list().data[0].id
HELLO = [{"role": "user", "content": "Hello! What is the capital of France?"}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}}, "required": ["city"],
                   "additionalProperties": False}}}


def raises(kind, code, call):
    try:
        call()
    except kind as error:
        assert error.body is None or code is None or error.body.get("code") == code, error.body
        return error
    raise AssertionError(f"{kind.__name__} expected")


def chat(**more):
    return client.chat.completions.create(**{"model": MODEL, "messages": HELLO, "max_tokens": 24, "temperature": 0, **more})


def whole_and_streamed():
    whole = chat()
    assert whole.choices[0].finish_reason in ("stop", "length") and whole.choices[0].message.content
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [whole.choices[0].finish_reason]
    with client.chat.completions.stream(model=MODEL, messages=HELLO, max_tokens=8, temperature=0) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content


def choices_seeds_stops():
    several = chat(n=3, temperature=1.2, seed=7, max_tokens=16)
    texts = [choice.message.content for choice in several.choices]
    assert [choice.index for choice in several.choices] == [0, 1, 2] and len(set(texts)) > 1, texts
    again = chat(n=3, temperature=1.2, seed=7, max_tokens=16)
    assert texts == [choice.message.content for choice in again.choices]
    plain = chat(max_tokens=24).choices[0].message.content
    stop = plain.split()[2]
    stopped = chat(stop=[stop]).choices[0]
    assert stopped.finish_reason == "stop" and stop not in stopped.message.content and plain.startswith(stopped.message.content)
    assert chat(max_completion_tokens=3).usage.completion_tokens == 3
    # More than there are lanes.
    many = chat(n=12, max_tokens=2)
    assert [choice.index for choice in many.choices] == list(range(12)), many


def logprobs_and_bias():
    answer = chat(logprobs=True, top_logprobs=5, max_tokens=6).choices[0]
    content = answer.logprobs.content
    assert len(content) >= 5 and all(len(token.top_logprobs) == 5 for token in content)
    for token in content:
        assert token.logprob <= 0 and token.top_logprobs[0].logprob >= token.logprob - 1e-6
        assert bytes(token.bytes).decode("utf-8", "replace") == token.token
    assert sum(math.exp(t.logprob) for t in content[0].top_logprobs) <= 1.001
    streamed = [c.choices[0].logprobs for c in chat(logprobs=True, top_logprobs=2, max_tokens=6, stream=True) if c.choices]
    assert sum(len(logprobs.content) for logprobs in streamed if logprobs) == len(content)
    first = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=1, temperature=0, logprobs=2)
    word = first.choices[0].text
    token = first.choices[0].logprobs.tokens[0]
    assert token == word
    request = urllib.request.Request(f"{BASE}/tokenize", json.dumps({"content": word}).encode(), {"Content-Type": "application/json"})
    ids = json.load(urllib.request.urlopen(request))["tokens"]
    other = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=1, temperature=0,
                                      logit_bias={str(ids[0]): -100})
    assert other.choices[0].text != word


def completions():
    several = client.completions.create(model=MODEL, prompt=["One, two,", "Red, green,"], max_tokens=4, temperature=0, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3] and several.usage.completion_tokens == 16
    echoed = client.completions.create(model=MODEL, prompt="One, two,", max_tokens=2, temperature=0, echo=True)
    assert echoed.choices[0].text.startswith("One, two,")
    parts = client.completions.create(model=MODEL, prompt="One, two,", max_tokens=4, temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in parts) == several.choices[0].text


def embeddings():
    texts = ["A cat sat on the mat.", "A kitten lay on the rug.", "Interest rates rose again."]
    found = client.embeddings.create(model=MODEL, input=texts)
    vectors = [item.embedding for item in found.data]
    raw = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert all(abs(a - b) < 1e-6 for a, b in zip(vectors[0], raw.data[0].embedding))
    assert all(abs(sum(x * x for x in vector) - 1) < 1e-3 for vector in vectors) and found.usage.prompt_tokens > 10
    close = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert close(vectors[0], vectors[1]) > close(vectors[0], vectors[2])
    raises(openai.BadRequestError, None, lambda: client.embeddings.create(model=MODEL, input=[]))


def tools():
    for choice in ["required", {"type": "function", "function": {"name": "get_weather"}}]:
        answer = chat(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, max_tokens=80).choices[0]
        assert answer.finish_reason == "tool_calls" and len(answer.message.tool_calls) == 1, answer
        call = answer.message.tool_calls[0]
        assert call.function.name == "get_weather" and set(json.loads(call.function.arguments)) == {"city"}
    with client.chat.completions.stream(model=MODEL, messages=HELLO, tools=[WEATHER], tool_choice="required", max_tokens=80,
                                        temperature=0, parallel_tool_calls=False) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls" and json.loads(streamed.message.tool_calls[0].function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "18 degrees, sunny"}]}
    history = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}, result]
    assert chat(messages=history, tools=[WEATHER]).choices[0].message is not None
    assert not chat(tools=[WEATHER], tool_choice="none").choices[0].message.tool_calls
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "get_weather"}}]}}
    answer = chat(tools=[other, WEATHER], tool_choice=allowed, parallel_tool_calls=False, max_tokens=80).choices[0]
    assert answer.message.tool_calls[0].function.name == "get_weather", answer
    unique = {"type": "object", "properties": {"list": {"type": "array", "uniqueItems": True}}}
    strict = {"type": "function", "function": {"name": "unique", "parameters": unique, "strict": True}}
    assert "uniqueItems" in str(raises(openai.BadRequestError, None, lambda: chat(tools=[strict])))
    old = {"name": "get_weather", "parameters": {"type": "object"}}
    assert "functions" in str(raises(openai.BadRequestError, None, lambda: chat(functions=[old])))
    raises(openai.BadRequestError, None, lambda: chat(tool_choice={"type": "function", "function": {"name": "none"}}))


def schemas():
    schema = {"type": "object", "additionalProperties": False, "required": ["name", "tags", "size"], "properties": {
        "name": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]},
        "tags": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string", "maxLength": 8}}}}
    made = chat(response_format={"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}, max_tokens=120)
    jsonschema.validate(json.loads(made.choices[0].message.content), schema)
    either = chat(response_format={"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}, tools=[WEATHER],
                  max_tokens=160).choices[0]
    if either.finish_reason == "tool_calls":
        assert set(json.loads(either.message.tool_calls[0].function.arguments)) == {"city"}, either
    else:
        assert not either.message.tool_calls, either
        jsonschema.validate(json.loads(either.message.content), schema)
    anything = chat(response_format={"type": "json_object"}, max_tokens=200, temperature=0.3, seed=1).choices[0]
    assert anything.finish_reason == "length" or isinstance(json.loads(anything.message.content), dict)
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    raises(openai.BadRequestError, None, lambda: chat(response_format=wrong))


def roles_and_fields():
    chat(messages=[{"role": "developer", "content": "Be brief."}, *HELLO, {"role": "user", "content": [{"type": "text", "text": "And Spain?"}]}])
    chat(messages=[*HELLO, {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Paris."},
                   {"role": "user", "content": "Thanks"}], store=True, metadata={"a": "b"}, user="me", extra_body={"unheard_of": 1})
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    assert "image" in str(raises(openai.BadRequestError, None, lambda: chat(messages=image)))


def errors():
    raises(openai.NotFoundError, "model_not_found", lambda: chat(model="nothing-of-that-name"))
    raises(openai.BadRequestError, "context_length_exceeded", lambda: chat(messages=[{"role": "user", "content": "word " * 20000}]))
    assert "temperature" in str(raises(openai.BadRequestError, None, lambda: chat(temperature=-1)))
    assert "messages" in str(raises(openai.BadRequestError, None, lambda: chat(messages=[])))
    assert "role" in str(raises(openai.BadRequestError, None, lambda: chat(messages=[{"role": "nobody", "content": ""}])))
    assert client.models.retrieve(MODEL).id == MODEL
    raises(openai.NotFoundError, "model_not_found", lambda: client.models.retrieve("none"))


def many_at_once():
    alone = chat(max_tokens=12).choices[0].message.content
    texts = [None] * 8

    def run(index):
        texts[index] = "".join(c.choices[0].delta.content or "" for c in chat(max_tokens=12, stream=True) if c.choices)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(texts))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert texts == [alone] * len(texts), texts


for part in [whole_and_streamed, choices_seeds_stops, logprobs_and_bias, completions, embeddings, tools, schemas, roles_and_fields,
             errors, many_at_once]:
    part()
    print(f"openai {openai.__version__}: {part.__name__} passed")
