#!/usr/bin/env bash
# Sends requests made from /openapi.json to a running server: no answer may be a fault of the server, or
# differ from the document in status, content type or form.
#
#   pip install schemathesis
#   pianola serve -m smollm2.gguf --context 512 --port 8080
#   tests/clients/schemathesis.sh http://127.0.0.1:8080 [EXAMPLES]
#
# The seed is fixed and the number of requests bounded, so that runs are alike.
set -euo pipefail
url=${1:?the URL of a server}
examples=${2:-12}
here=$(cd "$(dirname "$0")" && pwd)
export SCHEMATHESIS_HOOKS=schemathesis_hooks PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$here
# It keeps what it found in the folder it runs in.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
checks=not_a_server_error,status_code_conformance,content_type_conformance
checks+=,response_schema_conformance,response_headers_conformance,unsupported_method
timeout "${SCHEMATHESIS_SECONDS:-600}" "${SCHEMATHESIS:-schemathesis}" run "$url/openapi.json" \
    --url "$url" --checks "$checks" --phases examples,coverage,fuzzing --max-examples "$examples" \
    --generation-database none --seed 1 --workers 2 --request-timeout 60 --continue-on-failure --no-color \
    ${SCHEMATHESIS_ARGS:-}
