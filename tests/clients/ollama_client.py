"""Drives a running server with the official `ollama` package.

    python3 tests/clients/ollama_client.py http://127.0.0.1:8080 [--model NAME] [--schema]

Needs `pip install ollama` and a small chat model. --schema also asks for answers that follow a JSON schema.
"""

import argparse
import json
import math

import ollama

SHORT = {"num_predict": 12, "temperature": 0, "seed": 1}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def user(text):
    return [{"role": "user", "content": text}]


def fails(status, words, action):
    """The action fails with this status and an error that holds all words."""
    try:
        answer = action()
        # Streams fail when they are read.
        if not hasattr(answer, "model"):
            list(answer)
    except ollama.ResponseError as error:
        assert error.status_code == status, (error.status_code, error.error)
        for word in words:
            assert word in error.error, (word, error.error)
        return
    raise AssertionError(f"no error where {words} was expected")


def check_counts(last, reason):
    assert last.done and last.done_reason == reason, last
    assert last.prompt_eval_count > 0 and last.eval_count > 0, last
    durations = [last.prompt_eval_duration, last.eval_duration, last.total_duration]
    assert all(duration > 0 for duration in durations), last
    assert last.total_duration >= last.eval_duration, last
    assert last.load_duration >= 0, last


def check_chat(client, model):
    whole = client.chat(model, user("Name a colour."), options=SHORT)
    assert whole.message.role == "assistant" and whole.message.content, whole
    check_counts(whole, "length")
    assert whole.eval_count == 12, whole

    chunks = list(client.chat(model, user("Name a colour."), stream=True, options=SHORT))
    assert all(chunk.message.role == "assistant" for chunk in chunks)
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert "".join(chunk.message.content for chunk in chunks) == whole.message.content
    check_counts(chunks[-1], "length")

    stopped = client.chat(model, user("Count from 1 to 9."), options={**SHORT, "num_predict": 60, "stop": ["5"]})
    assert "5" not in stopped.message.content and stopped.done_reason == "stop", stopped

    scored = client.chat(model, user("Hi"), logprobs=True, top_logprobs=2, options=SHORT)
    assert len(scored.logprobs) > 0 and len(scored.logprobs[0].top_logprobs) == 2, scored


def check_tools(client, model):
    """Ollama cannot force a call, so only that tools and results are taken is checked."""
    answer = client.chat(model, user("Weather in Bonn?"), tools=[WEATHER], options=SHORT)
    assert answer.message.content or answer.message.tool_calls or answer.message.thinking, answer
    call = {"function": {"name": "get_weather", "arguments": {"city": "Bonn"}}}
    messages = user("Weather in Bonn?") + [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_name": "get_weather"},
    ]
    answer = client.chat(model, messages, tools=[WEATHER], options=SHORT)
    assert answer.done, answer
    assert client.chat(model, user("Hi"), tools=[], options=SHORT).done


def check_generate(client, model):
    whole = client.generate(model, "Name a colour.", system="Be brief.", options=SHORT)
    check_counts(whole, "length")
    chunks = list(client.generate(model, "Name a colour.", system="Be brief.", stream=True, options=SHORT))
    assert "".join(chunk.response for chunk in chunks) == whole.response
    check_counts(chunks[-1], "length")
    raw = client.generate(model, "The capital of France is", raw=True, options=SHORT)
    assert "Paris" in raw.response, raw
    assert client.generate(model, "Hi", images=[], options=SHORT).done
    fails(400, ["suffix"], lambda: client.generate(model, "a", suffix="b"))
    fails(400, ["template"], lambda: client.generate(model, "a", template="{{ .Prompt }}"))
    fails(400, ["context"], lambda: client.generate(model, "a", context=[1, 2]))
    fails(400, ["images"], lambda: client.generate(model, "a", images=[b"no image"]))


def check_embeddings(client, model):
    texts = ["a cat", "a kitten", "the law of contracts"]
    answer = client.embed(model, texts)
    assert len(answer.embeddings) == 3 and answer.prompt_eval_count > 0
    for vector in answer.embeddings:
        assert abs(math.sqrt(sum(x * x for x in vector)) - 1) < 1e-3
    one = client.embed(model, "a cat").embeddings[0]
    assert max(abs(a - b) for a, b in zip(one, answer.embeddings[0])) < 1e-2
    older = client.embeddings(model, "a cat").embedding
    assert max(abs(a - b) for a, b in zip(one, older)) < 1e-2
    assert client.embed(model, []).embeddings == []

    context = client.ps().models[0].context_length
    long = "word " * (context + 100)
    # Cut where the request says so itself, and else refused.
    fails(400, [str(context)], lambda: client.embed(model, long))
    fails(400, [str(context)], lambda: client.embed(model, long, truncate=False))
    assert client.embed(model, long, truncate=True).prompt_eval_count == context


def check_models(client, model):
    listed = {entry.model: entry for entry in client.list().models}
    assert model in listed and listed[model].size > 0 and len(listed[model].digest) == 64
    assert listed[model].details.family and listed[model].details.quantization_level
    for name in [model, f"{model}:latest"]:
        shown = client.show(name)
        architecture = shown.modelinfo["general.architecture"]
        assert shown.modelinfo["general.parameter_count"] > 0
        assert shown.modelinfo[f"{architecture}.context_length"] > 0
        assert shown.modelinfo[f"{architecture}.embedding_length"] > 0
        assert "completion" in shown.capabilities and "embedding" in shown.capabilities
        assert shown.template and shown.details.parameter_size
    by_name = client._client.post("/api/show", json={"name": model})
    assert by_name.status_code == 200 and by_name.json()["model_info"]
    version = client._client.get("/api/version").json()["version"]
    assert tuple(int(part) for part in version.split(".")) >= (0, 13, 4), version


def check_loading(client, model):
    assert client.generate(model, "").done_reason == "load"
    assert client.chat(model, [], keep_alive="10m").done_reason == "load"
    running = {entry.model: entry for entry in client.ps().models}
    assert running[model].context_length > 0 and running[model].size > 0
    assert running[model].expires_at is not None
    assert client.generate(model, "", keep_alive=0).done_reason == "unload"
    assert model not in [entry.model for entry in client.ps().models]
    answer = client.chat(model, user("Hi"), keep_alive=-1, options=SHORT)
    assert answer.done and model in [entry.model for entry in client.ps().models]


def check_errors(client, model):
    fails(404, ["no-such-model"], lambda: client.chat("no-such-model", user("Hi")))
    fails(404, ["no-such-model"], lambda: client.chat("no-such-model", user("Hi"), stream=True))
    fails(404, ["no-such-model"], lambda: client.show("no-such-model"))
    context = client.ps().models[0].context_length
    too_large = {"num_ctx": context + 1}
    words = [str(context), str(context + 1)]
    fails(400, words, lambda: client.chat(model, user("Hi"), options=too_large))
    assert client.chat(model, user("Hi"), options={**SHORT, "num_ctx": context}).done
    fails(400, ["too long"], lambda: client.chat(model, user("word " * (context + 100)), options=SHORT))
    fails(400, ["temperature"], lambda: client.chat(model, user("Hi"), options={"temperature": -1}))
    fails(400, ["not supported"], lambda: client.delete(model))
    fails(400, ["not supported"], lambda: client.copy(model, "other"))
    assert client.pull(model).status == "success"
    assert [line.status for line in client.pull(model, stream=True)][-1] == "success"
    fails(404, ["no-such-model"], lambda: client.pull("no-such-model"))


def check_schema(client, model):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    options = {"num_predict": 200, "temperature": 0.8, "seed": 3}
    for stream in [False, True]:
        answer = client.chat(model, user("Tell me about Ann, who is 41."), format=schema, stream=stream, options=options)
        text = "".join(chunk.message.content for chunk in answer) if stream else answer.message.content
        value = json.loads(text)
        assert set(value) == {"name", "age"} and isinstance(value["age"], int), value
        assert isinstance(value["name"], str) and 0 <= value["age"] <= 150, value
    options = {**options, "num_predict": 400}
    answer = client.generate(model, "A JSON object about a cat.", format="json", options=options)
    if answer.done_reason != "length":
        assert isinstance(json.loads(answer.response), dict), answer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--model", help="default: the first that is listed")
    parser.add_argument("--key", help="API key")
    parser.add_argument("--schema", action="store_true", help="check constrained answers, too")
    arguments = parser.parse_args()
    headers = {"Authorization": f"Bearer {arguments.key}"} if arguments.key else None
    client = ollama.Client(host=arguments.url, headers=headers, timeout=120)
    model = arguments.model or client.list().models[0].model
    checks = [check_loading, check_models, check_chat, check_tools, check_generate, check_embeddings, check_errors]
    for check in checks + [check_schema] * arguments.schema:
        check(client, model)
        print(f"{check.__name__}: ok")


if __name__ == "__main__":
    main()
