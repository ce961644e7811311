"""Requests to continue a text or to fill in what lies between two, as OpenAI's routes have them."""

from dataclasses import replace

from triptych.errors import UserError
from triptych.hub.directions import GAP
from triptych.hub.pipeline import Pipeline
from triptych.hub.requests import Request
from triptych.sample.canvas import MASKED, Canvas
from triptych.serve.canvases import checked_text
from triptych.serve.limits import ServeLimits
from triptych.serve.schemas_openai import CompletionBody, TextFields


def completion_of(pipe: Pipeline, body: CompletionBody, prompt: str, limits: ServeLimits) -> Request:
    """The request of one prompt; its result is the text without the prompt, unless that is to be echoed."""
    prompt, suffix = checked_text(prompt, limits), checked_text(body.suffix or "", limits)
    if suffix:
        return _between(pipe, prompt, suffix, body)
    request = pipe._requests.complete(prompt, num_tokens(pipe, body))
    return request if body.echo else after_prompt(pipe, request, prompt)


def num_tokens(pipe: Pipeline, body: TextFields) -> int | None:
    """How many tokens to write, if the model is not to choose."""
    can_choose = pipe.limits.text_slot is not None
    return body.num_tokens if can_choose or body.num_tokens else body.max_tokens


def after_prompt(pipe: Pipeline, request: Request, prompt: str) -> Request:
    """The request, with the result after its prompt."""
    length = len(pipe._inputs.normalize(prompt))
    return replace(request, read=lambda filled: request.read(filled)[length:])


def _between(pipe: Pipeline, prompt: str, suffix: str, body: CompletionBody) -> Request:
    """The request for the tokens between a prompt and a suffix."""
    count = body.num_tokens or body.max_tokens
    if count is None:
        raise UserError("suffix needs num_tokens (or max_tokens): the number of tokens between prompt and suffix.")
    if count > pipe.limits.seq_len:
        raise UserError(f"num_tokens must be at most {pipe.limits.seq_len} for this model, got {count}.")
    if GAP in f"{prompt} {suffix}" or prompt.endswith("_") or suffix.startswith("_"):
        raise UserError(f"prompt and suffix must not contain {GAP}, which stands for a gap.")
    request = pipe._requests.infill_text(GAP.join([prompt, *[""] * (count - 1), suffix]), None, None)
    is_new = request.canvas.text.ids == MASKED

    def read(filled: Canvas) -> str:
        ids = filled.text.ids
        return str(pipe.bundle.text.decode([ids[is_new[: len(ids)]]])[0])

    return request if body.echo else replace(request, read=read)
