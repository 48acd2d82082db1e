"""Drives the Responses API of OpenAI's Python package against a server.

    openai_responses.py http://127.0.0.1:8080 [--model NAME] [--key KEY] [--tools]

With --tools the parts run that need constraints: forced tools and schemas.
"""

import json

import openai
from pydantic import BaseModel

from common import fails, main, post, refusal

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
LONG = "You are a helpful assistant. " * 40


class Server:
    def __init__(self, base, model, key):
        self.base, self.model, self.key = base.rstrip("/") + "/v1", model, key
        self.client = openai.OpenAI(base_url=self.base, api_key=key, max_retries=0)

    def arguments(self, input="Say hello.", **more):
        arguments = {"model": self.model, "input": input, "max_output_tokens": 16, "temperature": 0}
        return {**arguments, **more}

    def create(self, input="Say hello.", **more):
        return self.client.responses.create(**self.arguments(input, **more))

    def open(self, body):
        return post(self.base + "/responses", body, {"authorization": f"Bearer {self.key}"})

    def refused(self, body):
        """The status and the field of a request that is refused."""
        status, error = refusal(lambda: self.open(body))
        return status, error["error"]["param"]


def whole_answers(server):
    response = server.create(instructions="Be brief.", metadata={"a": "b"}, user="u")
    assert response.id.startswith("resp_") and response.object == "response", response
    assert response.status in ("completed", "incomplete") and response.output_text, response
    [item] = response.output
    assert item.type == "message" and item.role == "assistant" and item.id, item
    assert response.metadata == {"a": "b"} and response.instructions == "Be brief.", response
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens, usage
    assert usage.output_tokens_details.reasoning_tokens == 0, usage
    cut = server.create("Tell a long story.", max_output_tokens=3)
    assert cut.status == "incomplete", cut
    assert cut.incomplete_details.reason == "max_output_tokens", cut
    # How a client has a model loaded.
    with server.open({"model": server.model, "input": "", "max_output_tokens": 1}) as response:
        assert response.status == 200


def streams(server):
    whole = server.create(store=False)
    kinds, text, done = [], "", None
    for number, event in enumerate(server.create(store=False, stream=True)):
        assert event.sequence_number == number, event
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.output_item.done":
            done = event.item
        last = event
    assert text == whole.output_text == last.response.output_text, (text, whole, last)
    assert done == last.response.output[0] and done.role == "assistant", (done, last)
    assert last.response.usage.output_tokens == whole.usage.output_tokens
    order = [kind for index, kind in enumerate(kinds) if kind not in kinds[:index]]
    assert order == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{whole.status}",
    ], order
    # The helper builds the answer from the events; it wants one that is complete.
    arguments = server.arguments("Say: hi", max_output_tokens=400)
    with server.client.responses.stream(**arguments) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.status == "completed" and final.output_text == streamed, final


def items(server):
    response = server.create(
        [
            {"type": "message", "id": "i1", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"role": "user", "content": "Who are you?"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Easy."}], "encrypted_content": None},
            {"type": "message", "id": "m1", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "A model.", "annotations": []}]},
            {"role": "user", "content": [{"type": "input_text", "text": "Thanks. Say bye."}]},
        ],
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "low", "summary": "auto"},
        prompt_cache_key="k",
        parallel_tool_calls=True,
        truncation="auto",
        text={"format": {"type": "text"}, "verbosity": "low"},
        extra_body={"client_metadata": {"x": "y"}},
    )
    assert response.output_text and response.truncation == "disabled", response


def kept_answers(server):
    first = server.create("My name is Ada.", instructions=LONG)
    assert server.client.responses.retrieve(first.id).output_text == first.output_text
    second = server.create("Say my name.", previous_response_id=first.id)
    assert second.previous_response_id == first.id, second
    # The conversation is continued, the instructions are not.
    alone = server.create("Say my name.")
    grown = second.usage.input_tokens - alone.usage.input_tokens
    assert 0 < grown < first.usage.input_tokens, (first.usage, second.usage, alone.usage)
    again = server.create("My name is Ada.", instructions=LONG)
    assert again.usage.input_tokens_details.cached_tokens > 0, again.usage
    item = first.output[0].id
    referred = server.create([{"role": "user", "content": "My name is Ada."},
                              {"type": "item_reference", "id": item},
                              {"role": "user", "content": "Say my name."}])
    assert referred.usage.input_tokens == second.usage.input_tokens, (referred.usage, second.usage)

    streamed = list(server.create("Say hello.", stream=True))[-1].response
    assert server.client.responses.retrieve(streamed.id).output_text == streamed.output_text

    server.client.responses.delete(first.id)
    fails(openai.NotFoundError, lambda: server.client.responses.retrieve(first.id))
    error = fails(openai.NotFoundError, lambda: server.create(previous_response_id=first.id))
    assert error.code == "previous_response_not_found", error.body
    secret = server.create(store=False)
    fails(openai.NotFoundError, lambda: server.client.responses.retrieve(secret.id))


def errors(server):
    background = fails(openai.BadRequestError, lambda: server.create(background=True))
    assert background.param == "background", background.body
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]}]
    assert "images" in fails(openai.BadRequestError, lambda: server.create(image)).message
    unknown = fails(openai.NotFoundError, lambda: server.create(model="no-such-model"))
    assert unknown.code == "model_not_found", unknown.body
    long = fails(openai.BadRequestError, lambda: server.create("many words " * 100_000))
    assert long.code == "context_length_exceeded", long.body
    assert server.refused({"model": server.model}) == (400, "input")
    assert server.refused({"model": server.model, "input": []}) == (400, "input")
    assert server.refused({"model": server.model, "input": [5]})[0] == 400
    assert server.refused({"model": server.model, "input": "x", "temperature": 1e308}) == (400, "temperature")
    schema = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "nothing"}}}
    assert server.refused({"model": server.model, "input": "x", "text": schema}) == (400, "text.format")


def tool_history(server):
    """A round of tools that is over: the model answers in words."""
    response = server.create(
        [
            {"role": "user", "content": "How is the weather in Rome?"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Rome"}'},
            {"type": "function_call", "call_id": "c2", "name": "read", "namespace": "files", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "no"}]},
        ],
        tools=[WEATHER, {"type": "web_search"}, {"type": "namespace", "name": "files", "description": "Files.", "tools": [
            {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}, "strict": False}]}],
        tool_choice="none",
    )
    assert response.status in ("completed", "incomplete"), response


def forced_tools(server):
    arguments = server.arguments(
        "How is the weather in Rome for 2 days?",
        max_output_tokens=200,
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "get_weather"},
        parallel_tool_calls=False,
    )
    response = server.client.responses.create(**arguments)
    [call] = [item for item in response.output if item.type == "function_call"]
    given = json.loads(call.arguments)
    assert call.name == "get_weather" and call.call_id, call
    assert isinstance(given["city"], str) and isinstance(given["days"], int), given
    streamed, done = "", None
    for event in server.client.responses.create(**arguments, stream=True):
        if event.type == "response.function_call_arguments.delta":
            streamed += event.delta
        if event.type == "response.function_call_arguments.done":
            done = event.arguments
    assert json.loads(streamed) == json.loads(done) == given, (streamed, done, given)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    answer = server.create([output], previous_response_id=response.id, tools=[WEATHER], tool_choice="none")
    assert answer.usage.input_tokens > response.usage.input_tokens // 2, answer.usage

    inner = {k: v for k, v in WEATHER.items()}
    namespace = {"type": "namespace", "name": "sky", "description": "The sky.", "tools": [inner]}
    named = server.create("How is the weather in Rome?", max_output_tokens=200, tools=[namespace], tool_choice="required")
    [call] = [item for item in named.output if item.type == "function_call"]
    assert (call.namespace, call.name) == ("sky", "get_weather"), call


def schemas(server):
    class Point(BaseModel):
        x: int
        y: int

    parsed = server.client.responses.parse(
        **server.arguments("Give a point.", max_output_tokens=200), text_format=Point
    )
    assert isinstance(parsed.output_parsed, Point), parsed
    anything = server.create("Give a JSON object.", max_output_tokens=400, text={"format": {"type": "json_object"}})
    assert anything.status == "incomplete" or isinstance(json.loads(anything.output_text), dict), anything


TESTS = [whole_answers, streams, items, kept_answers, errors]
TOOL_TESTS = [tool_history, forced_tools, schemas]

main(Server, TESTS, TOOL_TESTS)
