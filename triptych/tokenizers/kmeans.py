"""k-means, for the codebooks of tokenizers."""

import torch
from torch import Tensor


def kmeans(
    points: Tensor, num_centres: int, generator: torch.Generator, rounds: int = 15, starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm: [N, C] -> centres [K, C] and the centre of every point [N]; empty centres are drawn again.

    `starts` are the first centres [K, C]; random points if None.
    """
    if starts is None:
        starts = points[torch.randperm(len(points), generator=generator)[:num_centres]]
    centres = starts.clone()
    for _ in range(rounds):
        nearest = _nearest(points, centres)
        count = torch.bincount(nearest, minlength=num_centres)[:, None]
        total = torch.zeros_like(centres).index_add_(0, nearest, points)
        fresh = points[torch.randint(len(points), (num_centres,), generator=generator)]
        centres = torch.where(count > 0, total / count.clamp(min=1), fresh)
    return centres, _nearest(points, centres)


def spread_starts(points: Tensor, num_centres: int, generator: torch.Generator) -> Tensor:
    """k-means++: each next centre is a point drawn by its squared distance from the centres so far.

    Finds small distant clusters that random starts merge. Costs as much as `num_centres` rounds for one centre each.
    """
    squares = points.square().sum(1)
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    distance = torch.full_like(squares, torch.inf)
    while len(chosen) < num_centres:
        newest = points[chosen[-1]]
        distance = torch.minimum(distance, (squares - 2 * points @ newest + newest.square().sum()).clamp(min=0))
        if not distance.any():  # fewer different points than centres
            return points[chosen]
        chosen.append(int(torch.multinomial(distance, 1, generator=generator)))
    return points[chosen]


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    norms = centres.square().sum(1)
    return torch.cat([(norms - 2 * part @ centres.T).argmin(1) for part in points.split(8192)])
