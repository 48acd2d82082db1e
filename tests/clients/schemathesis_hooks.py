"""Keeps the answers short that schemathesis.sh asks for: its requests are checked, not the model."""

import schemathesis

MOST_TOKENS = 4
# Where each API says how many tokens an answer may have.
LIMITS = {
    "/v1/chat/completions": ["max_tokens", "max_completion_tokens"],
    "/v1/completions": ["max_tokens", "max_completion_tokens"],
    "/v1/responses": ["max_output_tokens"],
    "/v1/messages": ["max_tokens"],
}

# Where a name has to be given.
NAMED = ("/api/show", "/api/pull")


def short(value):
    """Whether a limit ends the answer soon, or is refused."""
    return not isinstance(value, (int, float)) or isinstance(value, bool) or 0 < value <= MOST_TOKENS


def reach_further(case, body):
    """Repairs what the document cannot say, or nearly all requests would be refused for the same reason."""
    # Names are made up.
    if case.path not in NAMED and isinstance(body.get("model"), str) and len(body["model"]) != 1:
        del body["model"]
    if isinstance(body.get("previous_response_id"), str) and len(body["previous_response_id"]) != 1:
        del body["previous_response_id"]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict) and not choice["function"].get("name"):
        del body["tool_choice"]
    # Only the model's own is right.
    if body.get("dimensions") == 0:
        del body["dimensions"]
    for field in ("prompt", "input"):
        if body.get(field) in ("", []):
            body[field] = "word"
        elif body.get(field) == [""]:
            body[field] = ["word", "more words"]


def shorten(case, body):
    fields = LIMITS.get(case.path)
    if fields and all(field not in body or not short(body[field]) for field in fields):
        # Zero is refused, and shall be.
        if body.get(fields[0]) != 0:
            body[fields[0]] = MOST_TOKENS
    if isinstance(body.get("n"), int) and 2 < body["n"] <= 32:
        body["n"] = 2
    if case.path in ("/api/chat", "/api/generate"):
        options = body.setdefault("options", {})
        if isinstance(options, dict) and ("num_predict" not in options or not short(options["num_predict"])):
            options["num_predict"] = MOST_TOKENS
    # Names of the catalogue would be fetched.
    if case.path == "/api/pull" and body.get("model"):
        body["model"] = f"no-such-model-{body['model']}"[:60]


@schemathesis.hook
def before_call(context, case, kwargs):
    if isinstance(case.body, dict):
        reach_further(case, case.body)
        shorten(case, case.body)
