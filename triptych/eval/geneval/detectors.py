"""Detectors of transformers, from a folder or a hub name.

    mask2former, maskformer    instance segmentation: masks, boxes around them. The official evaluation uses a
                               Mask2Former with a Swin-S backbone, on the hub
                               facebook/mask2former-swin-small-coco-instance
    all other types            object detection: DETR, YOLOS, RT-DETR and others; boxes only, so colours are judged with
                               the background of the box, and scores are not comparable with published ones

Labels of COCO are translated to GenEval's names. Preprocessing is that of the weights, by Pillow.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from triptych.errors import CheckpointError
from triptych.eval.geneval.detection import Detection, ObjectDetector
from triptych.eval.pretrained import Pretrained, find_pretrained, load_processor, load_weights

BATCH = 8
_PURPOSE = "GenEval's detector"
_SEGMENTATION = ("mask2former", "maskformer")
_LEAST_SCORE = 0.05  # far below GenEval's thresholds
_MOST_INSTANCES = 100  # per image, as in mmdetection
# Labels of COCO in files of transformers, and GenEval's names.
_ALIASES = {
    "motorbike": "motorcycle",
    "aeroplane": "airplane",
    "sofa": "couch",
    "pottedplant": "potted plant",
    "diningtable": "dining table",
    "tvmonitor": "tv",
    "mouse": "computer mouse",
    "remote": "tv remote",
    "keyboard": "computer keyboard",
    "doughnut": "donut",
    "hair dryer": "hair drier",
}


def load_detector(source: str, device: str = "cpu") -> ObjectDetector:
    """The detector in a folder or of a hub name."""
    pretrained_model = find_pretrained(source, (), _PURPOSE)
    return (
        InstanceSegmenter(pretrained_model, device)
        if pretrained_model.model_type in _SEGMENTATION
        else BoxDetector(pretrained_model, device)
    )


def _geneval_name(label: str) -> str:
    label = label.strip().lower().replace("_", " ")
    return _ALIASES.get(label, label)


class _Loaded:
    """A model with its image processor and the names of its classes."""

    def __init__(self, pretrained_model: Pretrained, device: str, auto_class: Any):
        from transformers import AutoImageProcessor

        self.model = load_weights(auto_class, pretrained_model, _PURPOSE, device)
        self.processor = load_processor(AutoImageProcessor, pretrained_model, _PURPOSE, backend="pil")
        self.names = {int(number): _geneval_name(str(label)) for number, label in self.model.config.id2label.items()}
        self.device = device
        if all(name.startswith("label ") for name in self.names.values()):
            raise CheckpointError(
                f"{_PURPOSE}: config.json in {pretrained_model.folder} does not name its classes (id2label)."
            )

    def outputs(self, image: Image.Image) -> Any:
        """One image at a time: padding beside larger images would change the results."""
        inputs = self.processor(images=[image.convert("RGB")], return_tensors="pt").to(self.device)
        with torch.inference_mode():
            return self.model(**inputs)


class BoxDetector:
    """Object detection with boxes."""

    names_colors = False

    def __init__(self, pretrained_model: Pretrained, device: str = "cpu"):
        from transformers import AutoModelForObjectDetection

        self._loaded = _Loaded(pretrained_model, device, AutoModelForObjectDetection)
        self.name, self.sha256 = f"{pretrained_model.model_type} ({pretrained_model.name})", pretrained_model.sha256
        self.classes = frozenset(self._loaded.names.values())

    def __call__(self, images: Sequence[Image.Image]) -> list[list[Detection]]:
        return [self._detect(image) for image in images]

    def _detect(self, image: Image.Image) -> list[Detection]:
        sizes = [(image.height, image.width)]
        pretrained_model = self._loaded.processor.post_process_object_detection(
            self._loaded.outputs(image), threshold=_LEAST_SCORE, target_sizes=sizes
        )[0]
        rows = zip(
            pretrained_model["labels"].tolist(), pretrained_model["boxes"].tolist(), pretrained_model["scores"].tolist()
        )
        return [Detection(self._loaded.names[label], _box(box), score) for label, box, score in rows]


class InstanceSegmenter:
    """Instance segmentation with masks, read out as mmdetection does.

    A query and a class are an instance with the score P(class) times the mean probability of the mask within itself;
    the 100 best are kept, with the box around the mask. (`post_process_instance_segmentation` of transformers works on
    masks of 384 x 384 pixels.)
    """

    names_colors = False

    def __init__(self, pretrained_model: Pretrained, device: str = "cpu"):
        from transformers import AutoModelForUniversalSegmentation

        self._loaded = _Loaded(pretrained_model, device, AutoModelForUniversalSegmentation)
        self.name, self.sha256 = f"{pretrained_model.model_type} ({pretrained_model.name})", pretrained_model.sha256
        self.classes = frozenset(self._loaded.names.values())

    def __call__(self, images: Sequence[Image.Image]) -> list[list[Detection]]:
        return [self._detect(image) for image in images]

    def _detect(self, image: Image.Image) -> list[Detection]:
        outputs = self._loaded.outputs(image)
        logits = F.interpolate(
            outputs.masks_queries_logits.float(), (image.height, image.width), mode="bilinear", align_corners=False
        )
        instances = read_instances(outputs.class_queries_logits[0].float(), logits[0])
        return [
            Detection(self._loaded.names[label], mask_box(mask), score, mask=mask.cpu().numpy())
            for label, score, mask in instances
        ]


def read_instances(class_logits_QC: Tensor, mask_logits_QHW: Tensor) -> list[tuple[int, float, Tensor]]:
    """Class, score and mask [H, W] of the instances that queries stand for. The last class is "no object"."""
    probabilities = class_logits_QC.softmax(-1)[:, :-1]
    num_classes = probabilities.shape[1]
    best = probabilities.flatten().topk(min(_MOST_INSTANCES, probabilities.numel()))
    instances = []
    for probability, index in zip(best.values.tolist(), best.indices.tolist()):
        query, label = divmod(index, num_classes)
        logits = mask_logits_QHW[query]
        mask = logits > 0
        if not mask.any():
            continue
        score = probability * float(logits.sigmoid()[mask].mean())
        if score > _LEAST_SCORE:
            instances.append((label, score, mask))
    return instances


def mask_box(mask_HW: Tensor) -> tuple[float, float, float, float]:
    """The box around the pixels of a mask that has some."""
    rows, columns = mask_HW.any(1).nonzero()[:, 0], mask_HW.any(0).nonzero()[:, 0]
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


def _box(edges: Sequence[float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = edges
    return left, top, right, bottom
