"""What the tests of several clients share: a command line, requests without a package, expected errors."""

import argparse
import json
import urllib.error
import urllib.request


def fails(kind, call):
    """The error of this kind that a call ends in."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def post(url, body, headers):
    """The response to a JSON body, as packages would not send it."""
    headers = {"content-type": "application/json", **headers}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    return urllib.request.urlopen(request, timeout=120)


def refusal(call):
    """Status and body of a request that is refused."""
    error = fails(urllib.error.HTTPError, call)
    return error.code, json.load(error)


def main(server, tests, tool_tests):
    """Runs tests against `server(base, model, key)`, with --tools also those that need constraints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--key", default="dummy")
    parser.add_argument("--tools", action="store_true")
    options = parser.parse_args()
    server = server(options.base, options.model, options.key)
    for test in tests + (tool_tests if options.tools else []):
        test(server)
        print("ok", test.__name__, flush=True)
