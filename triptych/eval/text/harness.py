"""Triptych as a model of lm-evaluation-harness, under the name "triptych".

    python -m triptych.eval.text --model triptych --model_args pretrained=runs/mine,mc_num=128 --tasks arc_easy

Log-likelihoods are those of `likelihood`, completions those of `generate`. Prompts that are too long for the model lose
their beginning, and are counted in `truncated`.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs

from triptych.errors import UserError, did_you_mean
from triptych.eval.records import RecordStore
from triptych.eval.suite import ModelSource
from triptych.eval.text.generate import GenerationConfig, GenerationRequest, fit_prompt
from triptych.eval.text.likelihood import LikelihoodConfig, TextRequest
from triptych.eval.text.windows import fit_windows
from triptych.eval.text.work import CompletePrompts, Runner, ScoreQuestions, number_of, token_array
from triptych.hub.pipeline import Pipeline
from triptych.sample.checks import check_count
from triptych.vocab import Modality

MODEL_NAME = "triptych"
_DEFAULT_NEW_TOKENS = 256  # lm-eval's, for tasks that do not say
_OWN = ("pretrained", "nproc")
_LIKELIHOOD = tuple(field.name for field in fields(LikelihoodConfig))
_GENERATION = ("block_length", "tokens_per_step")
_Pair = tuple[tuple[str, str], list[int], list[int]]
"""Prompt and answer, as texts and as tokens."""


class _Place(NamedTuple):
    """Which question a request belongs to."""

    task: str
    row: int | None
    """Number of the question in its task; rows may repeat."""
    key: int
    """`TextRequest.question`."""


@register_model(MODEL_NAME)
class TriptychLM(TemplateLM):
    """A model with its tokenizers, asked by lm-evaluation-harness."""

    def __init__(
        self,
        model: ModelSource | Pipeline,
        likelihood: LikelihoodConfig = LikelihoodConfig(),  # noqa: B008 (frozen)
        generation: GenerationConfig = GenerationConfig(),  # noqa: B008 (frozen)
        runner: Runner | None = None,
        pipe: Pipeline | None = None,
    ):
        """`pipe` is the loaded model, if it is already there."""
        super().__init__()
        self.source = model
        self.pipe = pipe or (model if isinstance(model, Pipeline) else model.load())
        self.likelihood, self.generation = likelihood, generation
        self.runner = runner or Runner(RecordStore(), _print)
        self.truncated: dict[str, Counter[str]] = {}
        """By task: number of requests, of those whose prompt was cut, and of the tokens that were cut."""
        self.tokenizer = None  # lm-eval's own use of it: chat templates, which there are none
        if Modality.TEXT not in self.pipe.bundle:
            raise UserError("the model has no text tokenizer, so it cannot be evaluated on text.")
        if self.pipe.limits.seq_len - likelihood.num_specials < 2:
            raise UserError(f"sequences of {self.pipe.limits.seq_len} tokens are too short for text.")

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict | None = None) -> Self:
        from lm_eval.utils import simple_parse_args_string

        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Self:
        """From the `--model_args` of lm-eval, and its `--batch_size` and `--device`."""
        args = {key: value for key, value in (additional_config or {}).items() if value is not None} | arg_dict
        device, batch_size = str(args.pop("device", "auto")), args.pop("batch_size", None)
        args.pop("max_batch_size", None)
        known = (*_OWN, *_LIKELIHOOD, *_GENERATION)
        for name in args:
            if name not in known:
                raise UserError(f"the model triptych has no argument {name!r}.{did_you_mean(name, known)}")
        if "pretrained" not in args:
            raise UserError(
                'name the model: --model_args pretrained=MODEL ("scenes", or the folder of a run or model).'
            )
        if device.startswith("cuda") and not torch.cuda.is_available():
            device = "auto"  # lm-eval asks for cuda:0 unless it is told otherwise
        source = ModelSource(str(args["pretrained"]), device)
        if batch_size is not None and str(batch_size).isdecimal():
            args.setdefault("batch_size", int(batch_size))
        likelihood = LikelihoodConfig(**{name: args[name] for name in _LIKELIHOOD if name in args})
        generation = GenerationConfig(
            **{name: args[name] for name in _GENERATION if name in args},
            guidance_scale=likelihood.guidance_scale,
            seed=likelihood.seed,
        )
        nproc = args.get("nproc", 1)
        check_count("nproc", nproc)
        return cls(source, likelihood, generation, Runner(RecordStore(), _print, nproc))

    # -- lm-eval's interface ------------------------------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        return self.pipe.vocabulary.eos(Modality.TEXT)

    @property
    def tokenizer_name(self) -> str:
        return self.pipe.bundle.fingerprints["text"]

    @property
    def room(self) -> int:
        """Tokens of prompt and answer that fit a sequence."""
        return self.pipe.limits.seq_len - self.likelihood.num_specials

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval stores with the results."""
        count = sum(parameter.numel() for parameter in self.pipe.model.parameters())
        return {"model_num_parameters": count, "likelihood": asdict(self.likelihood), "truncated": self.truncated}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self.pipe.bundle.text.encode([string])[0].tolist()

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The choices of a question are those with equal documents, which also holds where their prompts differ."""
        pairs: list[_Pair] = [(each.args[:2], *self._encode(*each.args[:2])) for each in requests]
        places = [_Place(str(each.task_name or ""), each.doc_id, number_of(each.doc)) for each in requests]
        results = self._score(pairs, places)
        for request, result in zip(requests, results):
            self.cache_hook.add_partial("loglikelihood", request.args, result)
        return results

    def _loglikelihood_tokens(self, requests: list[_Pair], **kwargs: Any) -> list[tuple[float, bool]]:
        """Here only the prompt says which requests belong to a question."""
        return self._score(requests, [_Place("", None, number_of(context)) for (context, _), *_ in requests])

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, in windows; lm-eval divides by their bytes."""
        pairs: list[_Pair] = [(("", text), [], self.tok_encode(text)) for text in (each.args[0] for each in requests)]
        places = [_Place(str(each.task_name or ""), each.doc_id, number_of("text", each.args[0])) for each in requests]
        results = [nats for nats, _ in self._score(pairs, places)]
        for request, result in zip(requests, results):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, result)
        return results

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        wanted = [normalize_gen_kwargs(dict(request.args[1]), _DEFAULT_NEW_TOKENS) for request in requests]
        by_task: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            by_task.setdefault(str(request.task_name or ""), []).append(number)
        texts, seen = [""] * len(requests), Counter[str]()
        for task, members in by_task.items():
            prepared = []
            for number in members:
                kwargs = wanted[number]
                context = requests[number].args[0]
                ids = token_array(self.tok_encode(context))
                prompt, size = fit_prompt(ids, kwargs["max_gen_toks"], self.pipe.limits.seq_len)
                self._count(task, len(ids) - len(prompt))
                until = tuple(stop for stop in kwargs["until"] if stop)
                identity = number_of(context, seen[context])  # a repeated request gets other draws
                seen[context] += 1
                temperature = float(kwargs.get("temperature", 0.0))
                prepared.append(GenerationRequest(prompt, size, until, temperature, identity))
            order = sorted(range(len(members)), key=lambda i: (len(prepared[i].prompt), i))
            work = CompletePrompts(self._model, self.generation, [prepared[i] for i in order])
            records = self.runner.run(f"complete {task}", work)
            for i, record in zip(order, records):
                texts[members[i]] = record["text"]
        for request, text in zip(requests, texts):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    # -- requests -----------------------------------------------------------------------------------------------------

    @property
    def _model(self) -> ModelSource | Pipeline:
        return self.pipe if self.runner.nproc == 1 else self.source

    def _encode(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """BOS is in every canvas, so an empty context needs no token of its own."""
        return self._encode_pair(context, continuation) if context else ([], self.tok_encode(continuation))

    def _score(self, requests: Sequence[_Pair], places: Sequence[_Place]) -> list[tuple[float, bool]]:
        """The results of requests, each with its place."""
        tasks: dict[str, dict[_Place, list[int]]] = {}
        for number, place in enumerate(places):
            tasks.setdefault(place.task, {}).setdefault(place, []).append(number)
        results = [(0.0, False)] * len(requests)
        for task, questions in tasks.items():
            prepared = [
                self._windows(task, place.key, [requests[number][1:] for number in members])
                for place, members in questions.items()
            ]
            # Questions of similar length are computed together: equally long canvases share forward passes.
            sizes = [max((len(r.prompt) + len(r.answer) for r in each), default=0) for each, _ in prepared]
            order = sorted(range(len(prepared)), key=lambda i: (sizes[i], i))
            work = ScoreQuestions(self._model, self.likelihood, [prepared[i][0] for i in order])
            records = self.runner.run(f"loglikelihood {task}", work)
            members_of = list(questions.values())
            for i, record in zip(order, records):
                owners = prepared[i][1]
                nats = np.bincount(owners, weights=record["nats"], minlength=len(members_of[i]))
                for choice, number in enumerate(members_of[i]):
                    is_greedy = all(is_best for owner, is_best in zip(owners, record["greedy"]) if owner == choice)
                    results[number] = (float(nats[choice]), is_greedy)
        return results

    def _windows(
        self, task: str, question: int, choices: Iterable[tuple[Sequence[int], Sequence[int]]]
    ) -> tuple[list[TextRequest], list[int]]:
        """The requests of a question, and which choice each belongs to. Only long answers have several."""
        requests: list[TextRequest] = []
        owners: list[int] = []
        for choice, (prompt, answer) in enumerate(choices):
            windows = fit_windows(token_array(prompt), token_array(answer), self.room)
            self._count(task, windows.num_cut)
            for number, (given, scored) in enumerate(windows.parts):
                key = question if number == 0 else number_of(question, number)
                is_last = number == len(windows.parts) - 1
                requests.append(TextRequest(given, scored, key, choice, is_last))
                owners.append(choice)
        return requests, owners

    def _count(self, task: str, num_cut: int) -> None:
        counts = self.truncated.setdefault(task, Counter(requests=0, truncated=0, tokens_cut=0))
        counts.update(requests=1, truncated=int(num_cut > 0), tokens_cut=num_cut)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
