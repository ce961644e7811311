"""Text, pictures and sound to token ids of one modality, and back."""
