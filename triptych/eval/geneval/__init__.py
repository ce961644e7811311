"""GenEval (Ghosh et al. 2023): whether images show the objects, numbers, colours and positions that a prompt asks for.

prompts.py     prompts of six categories with what they ask for: the official ones, from a file, or of your own names
detection.py   objects in images: the protocol of a detector
detectors.py   detectors of transformers: Mask2Former as the official evaluation has it, DETR and others
colors.py      colours of objects by CLIP
scoring.py     from detected objects to right or wrong, as a pure function
summary.py     scores by category and overall
"""
