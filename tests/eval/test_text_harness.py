"""Triptych as a model of lm-evaluation-harness: its own paths give what the estimator and the sampler give."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from triptych.errors import UserError
from triptych.eval.records import RecordStore
from triptych.eval.text import harness
from triptych.eval.text.generate import GenerationConfig, GenerationRequest, complete, fit_prompt
from triptych.eval.text.harness import TriptychLM
from triptych.eval.text.likelihood import LikelihoodConfig, LikelihoodEstimator, TextRequest
from triptych.eval.text.windows import fit_windows
from triptych.eval.text.work import Runner
from triptych.hub.pipeline import Limits, Pipeline
from triptych.model.transformer import ModelConfig, Targets, Transformer, initialise
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.text import ByteBPE
from triptych.vocab import Modality, Task, Vocabulary

TEXTS = ["Question: which animal lays eggs?\nAnswer: a hen", "the answer is True. the cup did not fit the box"] * 4


def tiny_pipe(seq_len: int = 512, std: float = 0.4) -> Pipeline:
    text = ByteBPE.train(TEXTS, 300)
    vocabulary = Vocabulary(text=text.vocab_size, image=7, audio=5)
    config = ModelConfig(num_layers=1, width=24, num_heads=3, d_ff=32, softmax_scope="full", init_std=std)
    model = Transformer(config, vocabulary)
    initialise(model, 1)
    limits = Limits(seq_len=seq_len, text_slot=None, audio_slot=None)
    return Pipeline(model, TokenizerBundle(vocabulary, text=text), limits, check_inputs=False)


def lm_of(pipe, *, lines=None, **config):
    runner = Runner(RecordStore(), (lines if lines is not None else []).append)
    return TriptychLM(pipe, LikelihoodConfig(**config), runner=runner)


def asked(context, continuation, doc=None, idx=0, task="task"):
    return Instance("loglikelihood", doc or {"q": context}, (context, continuation), idx, (task, 0, 1))


@pytest.fixture(scope="module")
def pipe():
    return tiny_pipe()


@torch.no_grad()
def enumerated(pipe, context, continuation):
    """The bound from all masks, with the loss of training."""
    vocabulary, encode = pipe.vocabulary, lambda text: pipe.bundle.text.encode([text])[0].tolist()
    prompt, whole = encode(context), encode(context + continuation)
    answer = whole[len(prompt) :]
    tokens = torch.tensor([[vocabulary.task(Task.TEXT), vocabulary.bos(Modality.TEXT), *whole]])
    positions = range(2 + len(prompt), 2 + len(whole))
    total = 0.0
    for k in range(1, len(answer) + 1):
        for masked in itertools.combinations(positions, k):
            hidden = tokens.clone()
            hidden[0, list(masked)] = vocabulary.mask(Modality.TEXT)
            ones = torch.ones(k)
            targets = Targets(torch.tensor(masked), tokens[0, list(masked)], ones, 0 * ones, (k, 0, 0))
            nll = pipe.model.loss(hidden, torch.arange(tokens.shape[1])[None], None, targets).nll_n
            total += float(nll.double().sum()) / (k * math.comb(len(answer), k))
    return -total, len(answer)


# -- log-likelihoods --------------------------------------------------------------------------------------------------

CHOICES = [" a hen", " Tom is", " the box"]


def test_loglikelihood_is_the_enumerated_bound(pipe):
    context = "Which animal lays eggs?"
    truth = [enumerated(pipe, context, choice) for choice in CHOICES]
    assert {length for _, length in truth} <= set(range(2, 8))
    requests = [asked(context, choice, idx=number) for number, choice in enumerate(CHOICES)]
    exact = lm_of(pipe, exact_up_to=7).loglikelihood(requests)
    np.testing.assert_allclose([nats for nats, _ in exact], [nats for nats, _ in truth], atol=1e-4)
    assert [greedy for _, greedy in exact] == [False] * 3

    # Monte Carlo: the mean over seeds lies within four standard errors.
    found = np.array(
        [[nats for nats, _ in lm_of(pipe, exact_up_to=0, mc_num=8, seed=s).loglikelihood(requests)] for s in range(60)]
    )
    error = found.std(0, ddof=1) / math.sqrt(len(found))
    assert (error > 0).all()
    assert (np.abs(found.mean(0) - [nats for nats, _ in truth]) < 4 * error).all()


def test_the_token_path_of_lm_eval_is_the_same_estimator(pipe):
    lm = lm_of(pipe)
    context, continuation = "Which animal", " lays eggs"
    pair = ((context, continuation), *lm._encode_pair(context, continuation))
    assert lm._loglikelihood_tokens([pair]) == lm.loglikelihood([asked(context, continuation)])


def test_choices_with_equal_documents_share_masks_even_if_prompts_differ(pipe, monkeypatch):
    keys = []
    original = LikelihoodEstimator.losses

    def spy(self, requests):
        keys.extend((request.question, request.choice) for request in requests)
        return original(self, requests)

    monkeypatch.setattr(LikelihoodEstimator, "losses", spy)
    one, other = {"q": 1}, {"q": 2}
    lm_of(pipe).loglikelihood(
        [asked("The cup", " is big", one, 0), asked("The box", " is big", one, 1), asked("A", " b", other)]
    )
    by_question = {}
    for question, choice in keys:
        by_question.setdefault(question, []).append(choice)
    assert sorted(by_question.values()) == [[0], [0, 1]]


def test_an_empty_context_and_spaces_at_its_end(pipe):
    lm = lm_of(pipe, exact_up_to=12)
    (empty, _), (spaced, _), (plain, _) = lm.loglikelihood(
        [asked("", "the"), asked("the ", "cup"), asked("the", " cup")]
    )
    assert empty == pytest.approx(enumerated(pipe, "", "the")[0], abs=1e-4)
    assert spaced == plain


def test_results_do_not_depend_on_other_requests(pipe):
    requests = [asked(f"the cup {n}", " is not big", {"n": n}) for n in range(12)]
    together = lm_of(pipe, mc_num=4).loglikelihood(requests)
    assert [lm_of(pipe, mc_num=4).loglikelihood([request])[0] for request in requests] == together
    assert lm_of(pipe, mc_num=4).loglikelihood(requests[::-1]) == together[::-1]


def test_prompts_that_are_too_long_lose_their_beginning_and_are_counted():
    short = tiny_pipe(seq_len=16)
    lm = lm_of(short)
    long = "the cup did not fit the box " * 5
    (cut, _), (whole, _) = lm.loglikelihood([asked(long, " is"), asked("the box", " is")])
    ids = np.asarray(short.bundle.text.encode([long.rstrip() + "  is"])[0], np.int64)
    length = len(lm._encode_pair(long, " is")[1])
    expected = LikelihoodEstimator(short.model)([TextRequest(ids[-14:-length], ids[-length:])])[0]
    assert cut == pytest.approx(expected.nats, abs=1e-5)
    assert cut != whole
    assert lm.truncated["task"]["requests"] == 2
    assert lm.truncated["task"]["truncated"] == 1
    assert lm.truncated["task"]["tokens_cut"] == len(ids) - 14


# -- windows and rolling ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [0, 3, 30])
@pytest.mark.parametrize("answer", [0, 1, 7, 8, 9, 31])
@pytest.mark.parametrize("room", [2, 7, 8])
def test_windows_score_every_token_once_with_all_the_context_that_fits(prompt, answer, room):
    ids = np.arange(prompt + answer)
    windows = fit_windows(ids[:prompt], ids[prompt:], room)
    np.testing.assert_array_equal(np.concatenate([part for _, part in windows.parts]), ids[prompt:])
    for number, (given, scored) in enumerate(windows.parts):
        assert len(given) + len(scored) <= room
        both = np.concatenate([given, scored])
        assert (np.diff(both) == 1).all()
        if number:
            assert len(given) + len(scored) == room
            assert len(given) >= room // 2
    assert windows.num_cut == prompt - len(windows.parts[0][0])
    assert windows.num_cut == 0 or len(windows.parts[0][0]) + len(windows.parts[0][1]) == room


def test_a_model_that_knows_nothing_has_the_bits_per_byte_of_uniform_tokens(tmp_path):
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    pipe = tiny_pipe(seq_len=10, std=1e-8)
    texts = ["the cup did not fit the box", "Which animal lays eggs? A hen, of course."]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    task = {
        "task": "own_text",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(rows)}, "cache_dir": str(tmp_path / "cache")},
        "output_type": "loglikelihood_rolling",
        "test_split": "test",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "own.yaml").write_text(json.dumps(task))
    loaded = TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False).load(["own_text"])
    for each in loaded["tasks"].values():
        each.set_config(key="num_fewshot", value=0)
    lm = lm_of(pipe, mc_num=2)
    found = evaluate(lm, loaded, bootstrap_iters=0)["results"]["own_text"]["bits_per_byte,none"]
    tokens = sum(len(ids) for ids in pipe.bundle.text.encode(texts))
    columns = sum(pipe.vocabulary.num_logits(modality) for modality in Modality)
    expected = tokens * math.log2(columns) / sum(len(text.encode()) for text in texts)
    assert found == pytest.approx(expected, rel=1e-5)


# -- generation -------------------------------------------------------------------------------------------------------


def greedy_by_hand(pipe, prompt, count, block):
    """Most confident token first, block by block, one token per forward pass."""
    vocabulary, ids = pipe.vocabulary, list(prompt)
    mask, start = vocabulary.mask(Modality.TEXT), [vocabulary.task(Task.TEXT), vocabulary.bos(Modality.TEXT)]
    while count > 0:
        size = min(block, count)
        tokens = torch.tensor([[*start, *ids, *[mask] * size]])
        while (tokens == mask).any():
            with torch.no_grad():
                hidden = pipe.model(tokens, torch.arange(tokens.shape[1])[None])[0]
                logits = pipe.model.logits(hidden, Modality.TEXT)
            logits[:, -2] = -math.inf  # BOS
            best, which = logits.log_softmax(1).max(1)
            best[tokens[0] != mask] = -math.inf
            at = int(best.argmax())
            tokens[0, at] = which[at]
        new = tokens[0, -size:].tolist()
        if vocabulary.eos(Modality.TEXT) in new:
            return ids[len(prompt) :] + new[: new.index(vocabulary.eos(Modality.TEXT))]
        ids, count = ids + new, count - size
    return ids[len(prompt) :]


def test_completions_fill_the_most_confident_token_first_block_by_block(pipe):
    prompts = [np.asarray(ids, np.int64) for ids in pipe.bundle.text.encode(["the cup", "Which animal lays", "a hen"])]
    config = GenerationConfig(block_length=5)
    found = complete(pipe.model, pipe.bundle.text, [GenerationRequest(prompt, 12) for prompt in prompts], config)
    expected = [greedy_by_hand(pipe, prompt.tolist(), 12, 5) for prompt in prompts]
    assert found == pipe.bundle.text.decode([np.array(ids, np.int64) for ids in expected])
    assert [complete(pipe.model, pipe.bundle.text, [GenerationRequest(p, 12)], config)[0] for p in prompts] == found


def test_completions_end_before_a_stop_string_or_an_eos(pipe, monkeypatch):
    prompt = np.asarray(pipe.bundle.text.encode(["the cup"])[0], np.int64)
    config = GenerationConfig(block_length=4)
    (whole,) = complete(pipe.model, pipe.bundle.text, [GenerationRequest(prompt, 12)], config)
    assert len(whole) > 3
    stop = whole[2]
    (cut,) = complete(pipe.model, pipe.bundle.text, [GenerationRequest(prompt, 12, ("never seen", stop))], config)
    assert cut == whole[: whole.index(stop)]
    blocks = iter([[1, 2, 3], [4, pipe.vocabulary.eos(Modality.TEXT), 5]])
    monkeypatch.setattr(
        "triptych.eval.text.generate._fill_block", lambda model, states, *rest: np.array([next(blocks)] * len(states))
    )
    (ended,) = complete(pipe.model, pipe.bundle.text, [GenerationRequest(prompt, 9)], GenerationConfig(block_length=3))
    assert ended == pipe.bundle.text.decode([np.array([1, 2, 3, 4])])[0]


def test_generate_until_reads_lm_evals_arguments(pipe):
    def completions(**kwargs):
        request = Instance("generate_until", {}, ("the cup", {"max_gen_toks": 6, **kwargs}), 0, ("task", 0, 1))
        return lm_of(pipe).generate_until([request, request])

    first, again = completions(until=["\n\n"])
    assert first == again
    drawn = completions(until=[], do_sample=True, temperature=1.0)
    assert drawn[0] != drawn[1]  # a repeated request gets other draws
    assert drawn == completions(until=[], do_sample=True, temperature=1.0)
    assert completions(max_gen_toks=0) == ["", ""]


def test_a_prompt_leaves_room_for_its_completion():
    ids = np.arange(100)
    assert [len(part) if i == 0 else part for i, part in enumerate(fit_prompt(ids, 4, 22))] == [16, 4]
    assert [len(part) if i == 0 else part for i, part in enumerate(fit_prompt(ids, 50, 22))] == [10, 10]
    assert [len(part) if i == 0 else part for i, part in enumerate(fit_prompt(ids[:5], 50, 22))] == [5, 15]
    np.testing.assert_array_equal(fit_prompt(ids, 4, 22)[0], ids[-16:])


# -- lm-eval's command line -------------------------------------------------------------------------------------------


def test_the_model_is_registered_and_takes_lm_evals_arguments(pipe, monkeypatch):
    assert get_model("triptych") is TriptychLM
    monkeypatch.setattr(harness.ModelSource, "load", lambda self: pipe)
    lm = TriptychLM.create_from_arg_string(
        "pretrained=runs/mine,mc_num=16,masks=independent,exact_up_to=3,guidance_scale=1.5,block_length=8,nproc=2",
        {"batch_size": "auto", "max_batch_size": None, "device": "cuda:0"},
    )
    assert lm.source.source == "runs/mine"
    assert lm.likelihood == LikelihoodConfig(mc_num=16, masks="independent", exact_up_to=3, guidance_scale=1.5)
    assert lm.generation == GenerationConfig(block_length=8, guidance_scale=1.5)
    assert lm.runner.nproc == 2
    assert TriptychLM.create_from_arg_obj({"pretrained": "x"}, {"batch_size": 4}).likelihood.batch_size == 4
    json.dumps(lm.get_model_info())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pretrained=scenes,mcnum=3", "no argument 'mcnum'.*mc_num"),
        ("mc_num=3", "name the model: --model_args pretrained=MODEL"),
        ("pretrained=scenes,mc_num=0", "mc_num must be"),
    ],
)
def test_wrong_arguments_are_refused_before_a_model_is_loaded(arguments, message, monkeypatch):
    monkeypatch.setattr(harness.ModelSource, "load", lambda self: pytest.fail("loaded"))
    with pytest.raises(UserError, match=message):
        TriptychLM.create_from_arg_string(arguments)


def test_a_model_without_text_is_refused(pipe, monkeypatch):
    monkeypatch.setattr(type(pipe.bundle), "__contains__", lambda self, modality: False)
    with pytest.raises(UserError, match="no text tokenizer"):
        TriptychLM(pipe)
