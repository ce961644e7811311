"""Published scaling laws, for comparison. N and D are plain counts, not billions.

Chinchilla    Besiroglu, Erdil, Barnett and You (2024), arXiv 2404.10102: the corrected fit of the third approach of
              Hoffmann et al. (2022), whose own fit contradicts their other two approaches. N counts all parameters.
              Standard errors of the exponents: 0.015 and 0.021
Quokka        Ni et al. (2025), arXiv 2510.03280, eq. 13: masked diffusion of text
paper         The Design Space of Tri-Modal Masked Diffusion Models (2026): D* = 7754 N^(a/b), a = .14, b = .17. The
              paper does not print A, B and E
paper, .84    the same with the exponent printed beside 7754. It contradicts four other numbers of the paper (among them
              480B tokens for 3B parameters, embeddings included), which .14 / .17 reproduces
"""

from dataclasses import dataclass

from triptych.scaling.law import ADDITIVE, Law
from triptych.scaling.optimal import Frontier

CHINCHILLA = Law.from_raw(ADDITIVE, E=1.8172, A=482.01, B=2085.43, a=0.3478, b=0.3658)
QUOKKA = Law.from_raw(ADDITIVE, E=2.413, A=798.6, B=4604.9, a=0.379, b=0.378)
PAPER = Frontier(K=7754, p=0.14 / 0.17)
PAPER_PRINTED = Frontier(K=7754, p=0.84)


@dataclass(frozen=True)
class PublishedLaw:
    frontier: Frontier
    sizes: tuple[float, float]
    """Smallest and largest model that the law was fitted to, approximately."""


PUBLISHED = {
    "paper, a/b = .14/.17": PublishedLaw(PAPER, (3e7, 3e9)),
    "paper, .84 as printed": PublishedLaw(PAPER_PRINTED, (3e7, 3e9)),
    "Quokka": PublishedLaw(Frontier.from_law(QUOKKA), (7e6, 1.1e10)),
    "Chinchilla, corrected": PublishedLaw(Frontier.from_law(CHINCHILLA), (5.7e7, 1.6e10)),
}
