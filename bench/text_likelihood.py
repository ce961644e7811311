"""Log-likelihoods per second of the text suite, against plain loops.

    python bench/text_likelihood.py [--short] [--json FILE]

    suite       equal canvases once, canvases of equal length together, logits of masked tokens
    requests    one answer at a time: all its draws in one forward pass, logits of every position
    samples     one masked canvas at a time, logits of every position

The model is the demo model, once as it is and once with random weights of width 384 and 20,000 text ids. Questions have
four answers of about eight tokens with 32 draws, or four answers of one token (as MMLU's letters) with one draw. All
sides use the same masks; their results are compared first. Ratios are of medians, measured in turns.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from choice_variance import ask, requests_of
from measure import base_parser, print_table, progress, save_results, start_benchmark, time_interleaved

from triptych.eval.text.likelihood import LikelihoodConfig, LikelihoodEstimator, TextRequest
from triptych.eval.text.masks import drawn_masks
from triptych.hub.pipeline import Pipeline
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.scenes.exam_samples import world_of
from triptych.vocab import Modality, Task, Vocabulary

TOLERANCE = 1e-3  # nats
LETTERS = 4
WIDE = ModelConfig(num_layers=4, width=384, num_heads=6, d_ff=1024, softmax_scope="modality", init_std=0.05)


@torch.inference_mode()
def plain(
    model: Transformer, requests: Sequence[TextRequest], config: LikelihoodConfig, *, at_once: bool
) -> list[float]:
    """Log-likelihoods by the textbook: every draw is a canvas of its own, equal or not."""
    vocabulary, results = model.vocabulary, []
    for request in requests:
        tokens = torch.tensor(
            [vocabulary.task(Task.TEXT), vocabulary.bos(Modality.TEXT), *request.prompt, *request.answer]
        )
        masks = drawn_masks(len(request.answer), config.mc_num, config.seed, request.question)
        assert masks.draws is not None
        is_masked = torch.from_numpy(masks.is_masked[masks.draws])
        canvases = tokens.repeat(len(is_masked), 1)
        canvases[:, -len(request.answer) :][is_masked] = vocabulary.mask(Modality.TEXT)
        total = 0.0
        for part, masked in zip(*(rows.split(len(canvases) if at_once else 1) for rows in (canvases, is_masked))):
            hidden = model(part, torch.arange(len(tokens)).expand(len(part), -1))
            log_prob = model.logits(hidden.flatten(0, 1), Modality.TEXT).log_softmax(1).view(*part.shape, -1)
            at_target = log_prob[:, -len(request.answer) :].gather(
                2, tokens[-len(request.answer) :].expand(len(part), -1)[..., None]
            )
            weight = len(request.answer) / masked.sum(1, keepdim=True) / config.mc_num
            total += float((at_target[..., 0].double() * masked * weight).sum())
        results.append(total)
    return results


def letters(requests: Sequence[TextRequest]) -> list[TextRequest]:
    """Questions with the same prompts and answers of one token."""
    prompts = [request.prompt for request in requests[::LETTERS]]
    return [
        TextRequest(prompt, np.array([choice + 1]), number, choice)
        for number, prompt in enumerate(prompts)
        for choice in range(LETTERS)
    ]


def main() -> None:
    parser = base_parser(__doc__)
    args = parser.parse_args()
    start_benchmark(args)
    count, rounds = (2, 1) if args.short else (5, 3)
    pipe = Pipeline.from_pretrained("scenes", device="cpu", check_inputs=False)
    wide = Transformer(WIDE, Vocabulary(text=20_000, image=pipe.vocabulary.image, audio=pipe.vocabulary.audio))
    initialise(wide, 0)
    choices = requests_of(pipe, ask("other scene", count, world_of(pipe)))
    rows = []
    for name, model in (("demo model", pipe.model), ("width 384, 20,000 ids", wide.eval())):
        for kind, requests, draws in (("four answers, 32 draws", choices, 32), ("four letters", letters(choices), 1)):
            config = LikelihoodConfig(mc_num=draws, exact_up_to=0, controlled=False)
            calls: dict[str, Callable[[], list[float]]] = {
                "suite": lambda m=model, r=requests, c=config: [x.nats for x in LikelihoodEstimator(m, c)(r)],
                "requests": lambda m=model, r=requests, c=config: plain(m, r, c, at_once=True),
                "samples": lambda m=model, r=requests, c=config: plain(m, r, c, at_once=False),
            }
            found = np.array([call() for call in calls.values()])
            assert np.abs(found - found[0]).max() < TOLERANCE, np.abs(found - found[0]).max()
            seconds = time_interleaved(calls, rounds, warm=0)
            progress(f"{name}, {kind}: {len(requests)} answers")
            rows.append(
                {
                    "model": name,
                    "questions": kind,
                    "answers": len(requests),
                    "suite, answers per second": len(requests) / seconds["suite"],
                    "suite / requests": seconds["requests"] / seconds["suite"],
                    "suite / samples": seconds["samples"] / seconds["suite"],
                }
            )
    print_table("Log-likelihoods per second, as a ratio to plain loops", rows)
    save_results(args, speed=rows)


if __name__ == "__main__":
    main()
