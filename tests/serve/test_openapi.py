"""The OpenAPI page: it describes every route, and no request made from it is an error inside the server."""

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

JSON, FORM = "application/json", "multipart/form-data"
POSTS = {
    "/v1/images/generations": JSON,
    "/v1/images/edits": FORM,
    "/v1/audio/speech": JSON,
    "/v1/audio/transcriptions": FORM,
    "/v1/chat/completions": JSON,
    "/v1/completions": JSON,
    "/v1/canvas": JSON,
    "/v1/encode": JSON,
    "/v1/decode": JSON,
}
UNHURRIED = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)


@pytest.fixture(scope="module")
def described(server):
    return httpx.get(f"{server}/openapi.json").raise_for_status().json()


@pytest.fixture(scope="module")
def api(server):
    return schemathesis.openapi.from_url(f"{server}/openapi.json")


def test_every_route_of_openais_api_is_described(described):
    content = {
        path: set(methods["post"]["requestBody"]["content"])
        for path, methods in described["paths"].items()
        if "post" in methods
    }
    assert content == {path: {kind} for path, kind in POSTS.items()}


def test_forms_name_their_files(described):
    form = described["paths"]["/v1/images/edits"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["properties"]["image"] == {"type": "string", "format": "binary"}
    assert set(form["required"]) == {"prompt", "image"}


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("path", POSTS)
def test_no_request_is_an_error_inside_the_server(api, path, mode):
    """Requests that fit the page, and requests that do not."""

    @given(case=api[path]["POST"].as_strategy(generation_mode=mode))
    @settings(max_examples=6, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=UNHURRIED)
    def send(case):
        case.validate_response(case.call(timeout=60), checks=[not_a_server_error])

    send()
