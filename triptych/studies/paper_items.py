"""Every figure and table of the paper in order, and the equations and sections with claims of their own."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperItem:
    place: str
    """Such as "Figure 4"; claims of studies name it."""
    title: str
    claim: str
    """In one sentence of our own; empty if it claims nothing that runs could decide."""
    studies: tuple[str, ...] = ()
    """The studies that reproduce it."""
    missing: str = ""
    """Why no study reproduces it."""
    command: str = ""
    """The command for those with the means, where no study reproduces it."""


_SAMPLES = "samples of the 3B model, whose training data and weights are not public"
_DRAW = 'triptych generate text-to-image "PROMPT"'
_PROMPTS = "prompts of the samples of the 3B model"

ITEMS = (
    PaperItem("Figure 1", "Generated images", "", missing=_SAMPLES, command=_DRAW),
    PaperItem("Figure 2", "Architecture", "", missing="a drawing; ours is in README.md"),
    PaperItem(
        "Figure 3",
        "Compute-optimal tokens by model size, against other families",
        "A compute-optimal tri-modal masked-diffusion model needs more tokens than an autoregressive one of its size.",
        ("scaling",),
    ),
    PaperItem(
        "Section 4",
        "Hyperparameter transfer over width and depth",
        "Hyperparameters tuned on a small model suit wider and deeper ones under the transfer rule.",
        ("coordinates", "lr-transfer"),
    ),
    PaperItem(
        "Figure 4",
        "Loss by batch size",
        "With the batch-size rule the loss is the same for all batch sizes up to a critical one.",
        ("batch-size",),
    ),
    PaperItem(
        "Figure 5",
        "Critical number of steps by model size",
        "At a fixed number of tokens the critical number of steps does not depend on the size of the model.",
        ("critical-batch",),
    ),
    PaperItem(
        "Figure 6",
        "Critical number of steps by tokens",
        "The critical number of steps grows with the number of tokens, more slowly than in proportion.",
        ("critical-batch",),
    ),
    PaperItem(
        "Figure 7",
        "Critical batch size by tokens",
        "The critical batch size grows with the number of tokens, more slowly than in proportion.",
        ("critical-batch",),
    ),
    PaperItem(
        "Section 5.2",
        "Law of the trade-off between noise and steps",
        "A sum of a power of the virtual steps and a power of the virtual batch describes the loss.",
        ("gamma",),
    ),
    PaperItem(
        "Figure 8",
        "Trade-off between noise and steps",
        "The best exponent gamma lies between 0 and 1.",
        ("gamma",),
    ),
    PaperItem(
        "Figure 9",
        "Loss by virtual batch at fixed tokens",
        "The best virtual batch grows with the tokens to the power of 0.44.",
        ("gamma",),
    ),
    PaperItem(
        "Section 5.3",
        "Compute-optimal tokens of tri-modal models and of models of text alone",
        "Small tri-modal models need more tokens than models of text alone.",
        ("text-scaling",),
    ),
    PaperItem("Figure 10", "Training curves", "The loss is dominated by the total compute.", ("scaling",)),
    PaperItem(
        "Figure 11",
        "Fit of the scaling law",
        "The joint law fits the runs to 0.5 %, where the additive law is insufficient.",
        ("scaling",),
    ),
    PaperItem(
        "Figure 12",
        "Share of the blocks in all parameters",
        "The large vocabulary leaves small models less than half of their parameters for the blocks.",
        ("parameters",),
    ),
    PaperItem("Figure 13", "Contours of equal loss", "", ("scaling",)),
    PaperItem(
        "Figure 14",
        "Loss by size at fixed compute",
        "At a fixed compute budget there is a best size between too small and too large models.",
        ("scaling",),
    ),
    PaperItem(
        "Equation 5.2",
        "Compute-optimal tokens of a model",
        "The best number of tokens grows as N^0.84.",
        ("scaling",),
    ),
    PaperItem(
        "Equation 5.3",
        "Compute-optimal allocation",
        "The best size grows as C^0.55, the best number of tokens as C^0.45.",
        ("scaling",),
    ),
    PaperItem(
        "Figure 15",
        "Scores of the 3B model",
        "One model of 3B parameters writes, draws and speaks.",
        missing="the training data and the weights of the 3B model are not public; the same scores of any model",
        command="triptych eval paper MODEL --data FOLDER",
    ),
    PaperItem(
        "Figure 16",
        "Loss by mixture of the modalities",
        "There is no synergy between modalities: they compete for capacity and tokens.",
        ("mixture",),
    ),
    PaperItem(
        "Figure 17",
        "Sampling settings for images",
        "Images improve with more steps, at intermediate guidance and temperature, and with a high top-p.",
        ("inference",),
    ),
    PaperItem(
        "Figure 18",
        "Sampling settings for speech",
        "More guidance makes speech easier to transcribe and less faithful; the best settings differ between metrics.",
        ("inference",),
    ),
    PaperItem(
        "Section 7.4",
        "Variance of the gradient with anti-masking",
        "Complementary masks reduce the variance of the gradient.",
        ("anti-masking",),
    ),
    PaperItem(
        "Table 1",
        "Anti-masking, multi-modal",
        "At equal compute and equal unique data, complementary masks improve images and audio.",
        ("anti-masking",),
    ),
    PaperItem(
        "Table 2",
        "Anti-masking, text only",
        "At equal compute and equal unique data, complementary masks improve most scores of text models.",
        ("anti-masking",),
    ),
    PaperItem(
        "Table 3",
        "Audio tokenizers",
        "",
        missing="compares tokenizers of others on LibriTTS; the same scores of any tokenizer on any clips",
        command="triptych eval tokenizers DATA",
    ),
    PaperItem(
        "Table 4",
        "Image tokenizers",
        "",
        missing="compares tokenizers of others on ImageNet and CC12M; the same scores of any tokenizer on any images",
        command="triptych eval tokenizers DATA",
    ),
    PaperItem(
        "Figure 19",
        "Search for global hyperparameters",
        "A random search on a small model and a Gaussian process find the best values of AdamW.",
        ("search",),
    ),
    PaperItem(
        "Figure 20",
        "Run time by batch size and number of nodes",
        "More nodes shorten a run at a loss of efficiency; small batches leave GPUs idle.",
        ("runtime",),
    ),
    PaperItem(
        "Table 5",
        "Settings of the 3B model",
        "",
        missing="a list of settings, which the recipe paper_3b has",
        command="triptych train paper_3b --print-config",
    ),
    PaperItem(
        "Figure 21",
        "Search for hyperparameters of each kind of weight",
        "Separate hyperparameters for each kind of weight reach the same loss on 1.81 times fewer tokens.",
        ("modules",),
    ),
    PaperItem(
        "Table 6",
        "Multipliers of each kind of weight",
        "Embeddings and unembeddings learn faster, attention projections and MLP gates more slowly.",
        ("modules",),
    ),
    PaperItem("Figure 22", "Training curves of text models", "", ("text-scaling",)),
    PaperItem(
        "Figure 23",
        "Scaling laws of text models",
        "A scaling law describes text-only models, and isoFLOP curves have a minimum.",
        ("text-scaling",),
    ),
    PaperItem(
        "Figure 24",
        "Masking schedules for audio",
        "The polynomial schedule gives the best audio, with a guidance scale between 1 and 3.",
        ("schedules",),
    ),
    PaperItem(
        "Figure 25",
        "Masking schedules for images",
        "The polynomial schedule gives the best images, with a guidance scale between 7 and 9.",
        ("schedules",),
    ),
    *(PaperItem(f"Figure {n}", "More generated images", "", missing=_SAMPLES, command=_DRAW) for n in range(26, 30)),
    *(PaperItem(f"Table {n}", "Prompts of the generated images", "", missing=_PROMPTS) for n in range(7, 11)),
)
