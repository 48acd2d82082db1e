"""Drives Anthropic's Python package against a server.

    anthropic_client.py http://127.0.0.1:8080 [--model NAME] [--key KEY] [--tools]

With --tools the parts run that need constraints: forced tools and schemas.
"""

import json

import anthropic
from pydantic import BaseModel

from common import fails, main, post, refusal

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
LONG_SYSTEM = "You are a helpful assistant. " * 40


class Server:
    def __init__(self, base, model, key):
        self.base, self.model, self.key = base.rstrip("/"), model, key
        self.client = anthropic.Anthropic(base_url=self.base, api_key=key, max_retries=0)

    def arguments(self, text="Say hello.", **more):
        arguments = {
            "model": self.model,
            "max_tokens": 16,
            "messages": [{"role": "user", "content": text}],
            # The package has no argument for it any more.
            "extra_body": {"temperature": 0, **more.pop("extra_body", {})},
        }
        return {**arguments, **more}

    def body(self, **more):
        arguments = self.arguments()
        return {**arguments, **arguments.pop("extra_body"), **more}

    def create(self, text="Say hello.", **more):
        return self.client.messages.create(**self.arguments(text, **more))

    def open(self, body, path="/v1/messages", headers=None):
        return post(self.base + path, body, {"x-api-key": self.key, **(headers or {})})

    def refused(self, body):
        return refusal(lambda: self.open(body))


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def whole_answers(server):
    message = server.create()
    assert message.id.startswith("msg_") and message.type == "message", message
    assert message.role == "assistant" and text_of(message), message
    assert message.stop_reason in ("end_turn", "max_tokens"), message
    assert message.usage.output_tokens > 0 and message.usage.input_tokens >= 0, message.usage
    assert server.create("Tell a long story.", max_tokens=3).stop_reason == "max_tokens"
    # More than the context holds; the package itself would want such an answer streamed.
    with server.open(server.body(max_tokens=64000, stop_sequences=[" "])) as response:
        assert json.load(response)["stop_reason"] == "stop_sequence"


def stop_sequences(server):
    message = server.create("Tell a long story.", stop_sequences=["zzzzzz", " "])
    assert message.stop_reason == "stop_sequence", message
    assert message.stop_sequence == " " and " " not in text_of(message), message


def streams(server):
    whole = server.create()
    with server.client.messages.stream(**server.arguments()) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(final) == text_of(whole), (text, final, whole)
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens, (final.usage, whole.usage)
    total = lambda usage: usage.input_tokens + usage.cache_read_input_tokens
    assert total(final.usage) == total(whole.usage), (final.usage, whole.usage)

    names = []
    body = server.body(stream=True)
    headers = {"anthropic-beta": "a-1,b-2", "anthropic-version": "2026-10-21"}
    with server.open(body, "/v1/messages?beta=true", headers) as response:
        assert response.headers["content-type"] == "text/event-stream"
        for line in response:
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                names.append(line.removeprefix("event: "))
            if line.startswith("data: "):
                assert json.loads(line.removeprefix("data: "))["type"] == names[-1], line
    deltas = [name for name in names if name not in ("content_block_delta", "ping")]
    expected = ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert deltas == expected, names
    assert names[1] == "ping" and "content_block_delta" in names, names


def conversations(server):
    message = server.create(
        system=[
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be kind."},
        ],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Hi."}]},
            {"role": "user", "content": "Who are you?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "An easy one.", "signature": "s"},
                    {"type": "text", "text": "A model."},
                ],
            },
            {"role": "system", "content": "A reminder."},
            {"role": "user", "content": "Thanks. Say bye."},
        ],
        thinking={"type": "adaptive"},
        metadata={"user_id": "{}"},
        extra_body={"context_management": {"edits": []}, "output_config": {"effort": "low"}},
    )
    assert text_of(message), message


def counts(server):
    arguments = server.arguments(system=LONG_SYSTEM)
    counted = server.client.messages.count_tokens(
        model=server.model, messages=arguments["messages"], system=LONG_SYSTEM
    )
    server.client.messages.create(**arguments)
    usage = server.client.messages.create(**arguments).usage
    assert usage.cache_read_input_tokens > 0, usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens, (usage, counted)
    with server.client.messages.stream(**arguments) as stream:
        streamed = stream.get_final_message().usage
    assert streamed.cache_read_input_tokens > 0, streamed


def models(server):
    listed = list(server.client.models.list())
    assert listed and all(model.type == "model" and model.created_at.year > 2000 for model in listed), listed
    one = server.client.models.retrieve(listed[0].id)
    assert one.display_name == listed[0].id, one


def errors(server):
    status, missing = server.refused(server.body(max_tokens=None))
    assert status == 400 and missing["type"] == "error", missing
    assert missing["error"]["type"] == "invalid_request_error", missing
    assert "max_tokens" in missing["error"]["message"], missing

    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    content = [{"type": "image", "source": source}]
    image = fails(anthropic.BadRequestError, lambda: server.create(content))
    assert "images" in image.message, image.message

    unknown = fails(anthropic.NotFoundError, lambda: server.create(model="no-such-model"))
    assert unknown.body["error"]["type"] == "not_found_error", unknown.body

    long = fails(anthropic.BadRequestError, lambda: server.create("many words " * 100_000))
    assert "prompt is too long: " in long.message and " maximum" in long.message, long.message

    status, thread = server.refused(server.body(thread={"type": "create"}))
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert status == 400 and thread["error"]["details"] == details, thread

    status, thinking = server.refused(server.body(thinking={"type": "loud"}))
    assert status == 400 and "thinking.type" in thinking["error"]["message"], thinking
    block = [{"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}]
    status, unknown = server.refused(server.body(messages=block))
    assert status == 400 and "container_upload" in unknown["error"]["message"], unknown
    assert server.refused([])[0] == 400
    assert server.refused(server.body(temperature="hot"))[0] == 400


def tool_history(server):
    """A round of tools that is over: the model answers in words."""
    message = server.create(
        messages=[
            {"role": "user", "content": "How is the weather in Rome?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome", "days": 1}},
                    {"type": "tool_use", "id": "toolu_2", "name": "get_weather", "input": {"city": "Rome", "days": 2}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_2",
                        "content": [{"type": "text", "text": "no data"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "Well?"},
                ],
            },
        ],
        tools=[WEATHER, {"type": "web_search_20250305", "name": "web_search"}],
        tool_choice={"type": "none"},
    )
    assert message.stop_reason in ("end_turn", "max_tokens"), message


def forced_tools(server):
    arguments = server.arguments(
        "How is the weather in Rome for 2 days?",
        max_tokens=200,
        tools=[WEATHER],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
    )
    message = server.client.messages.create(**arguments)
    assert message.stop_reason == "tool_use", message
    [call] = [block for block in message.content if block.type == "tool_use"]
    assert call.name == "get_weather" and call.id, call
    assert isinstance(call.input["city"], str) and isinstance(call.input["days"], int), call
    with server.client.messages.stream(**arguments) as stream:
        partial = "".join(event.partial_json for event in stream if event.type == "input_json")
        final = stream.get_final_message()
    [streamed] = [block for block in final.content if block.type == "tool_use"]
    assert json.loads(partial) == streamed.input == call.input, (partial, streamed, call)
    arguments["tool_choice"] = {"type": "any"}
    assert server.client.messages.create(**arguments).stop_reason == "tool_use"


def schemas(server):
    class Point(BaseModel):
        x: int
        y: int

    parsed = server.client.messages.parse(
        **server.arguments("Give a point.", max_tokens=200), output_format=Point
    )
    assert isinstance(parsed.parsed_output, Point), parsed


def tool_runner(server):
    """The runner asks for threads first; refused as it expects, it sends all messages."""
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: Its name.
        """
        asked.append(city)
        return "sunny"

    runner = server.client.beta.messages.tool_runner(
        model=server.model,
        max_tokens=100,
        extra_body={"temperature": 0},
        tools=[get_weather],
        tool_choice={"type": "any"},
        messages=[{"role": "user", "content": "How is the weather in Rome?"}],
        max_iterations=2,
    )
    messages = list(runner)
    assert len(messages) == 2 and asked, (messages, asked)
    # The second prompt holds the first one, the call and its result.
    prompt = [message.usage.input_tokens + message.usage.cache_read_input_tokens for message in messages]
    assert prompt[1] > prompt[0], prompt


TESTS = [whole_answers, stop_sequences, streams, conversations, counts, models, errors]
TOOL_TESTS = [tool_history, forced_tools, schemas, tool_runner]

main(Server, TESTS, TOOL_TESTS)
