"""CLIP of transformers: embeddings of images and texts, the CLIP score, and zero-shot classification.

    CLIP score    100 max(cos(image, text), 0), the mean over pairs (Hessel et al. 2021, scaled as torchmetrics does)

Hessel's own scale is 2.5 max(cos, 0), and some tables print cos: divide by 100. Texts longer than the model takes (77
tokens for OpenAI's) are cut off.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from triptych.eval.pretrained import find_pretrained, load_processor, load_weights

BATCH = 16
_PURPOSE = "CLIP"


class ClipModel:
    """Weights from a folder or a hub name. Images are resized and cropped as its own processor says."""

    def __init__(self, source: str, device: str = "cpu"):
        pretrained_model = find_pretrained(source, ("clip",), _PURPOSE)
        from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

        self.model = load_weights(CLIPModel, pretrained_model, _PURPOSE, device)
        # The processor of Pillow: the other one needs torchvision.
        self.processor = load_processor(AutoImageProcessor, pretrained_model, _PURPOSE, backend="pil")
        self.tokenizer = load_processor(AutoTokenizer, pretrained_model, _PURPOSE)
        self.name, self.sha256, self.device = f"CLIP ({pretrained_model.name})", pretrained_model.sha256, device
        self.dimension = int(self.model.config.projection_dim)
        self.max_tokens = int(self.model.config.text_config.max_position_embeddings)

    def image_features(self, images: Sequence[Image.Image]) -> np.ndarray:
        """[n, dimension], not normalised."""
        features = [np.zeros((0, self.dimension), np.float32)]
        for start in range(0, len(images), BATCH):
            batch = [image.convert("RGB") for image in images[start : start + BATCH]]
            pixels = self.processor(images=batch, return_tensors="pt")["pixel_values"].to(self.device)
            with torch.inference_mode():
                pooled = self.model.vision_model(pixel_values=pixels).pooler_output
                features.append(self.model.visual_projection(pooled).float().cpu().numpy())
        return np.concatenate(features)

    def text_features(self, texts: Sequence[str]) -> np.ndarray:
        """[n, dimension], not normalised."""
        features = [np.zeros((0, self.dimension), np.float32)]
        for start in range(0, len(texts), BATCH):
            tokens = self.tokenizer(
                list(texts[start : start + BATCH]),
                padding=True,
                truncation=True,
                max_length=self.max_tokens,
                return_tensors="pt",
            ).to(self.device)
            with torch.inference_mode():
                pooled = self.model.text_model(
                    input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
                ).pooler_output
                features.append(self.model.text_projection(pooled).float().cpu().numpy())
        return np.concatenate(features)

    def is_cut_off(self, text: str) -> bool:
        """Whether a text has more tokens than the model reads."""
        return len(self.tokenizer(text)["input_ids"]) > self.max_tokens

    def scores(self, images: Sequence[Image.Image], texts: Sequence[str]) -> np.ndarray:
        """CLIP score of each image with its text, [n], from 0 to 100."""
        assert len(images) == len(texts)
        pairs = unit(self.image_features(images)) * unit(self.text_features(texts))
        return 100 * np.maximum(pairs.sum(1), 0)


class ZeroShotClassifier:
    """Chooses the label whose text is nearest to an image.

    The embedding of a label is the mean of the unit embeddings of several texts about it, scaled to unit length.
    """

    def __init__(self, clip: ClipModel, labels: Sequence[str], texts: Sequence[Sequence[str]]):
        """`texts` has some texts for each label."""
        self.clip, self.labels = clip, tuple(labels)
        self.weights = unit(np.stack([unit(clip.text_features(each)).mean(0) for each in texts]))

    def __call__(self, images: Sequence[Image.Image]) -> list[str]:
        # The length of an image's embedding changes nothing.
        similarity = self.clip.image_features(images) @ self.weights.T
        return [self.labels[index] for index in similarity.argmax(1)]


def unit(features: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1."""
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
